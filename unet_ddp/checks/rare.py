"""Kinds of validation images that are rare in training."""

from __future__ import annotations

from unet_ddp.checks.table import Table
from unet_ddp.data.dataset import RareKind
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.splits import Split

_RARE = 0.1  # share of the training images
_MOST_KINDS, _MOST_IMAGES = 20, 100_000  # of more there is no list


def find_rare(table: Table, split: Split) -> list[RareKind]:
    """Return the kinds of validation images that at most a tenth of the training images are of.

    The kinds are the groups that a list gives, folders below --images, sizes, and whether they are light on dark.
    What training and validation have none in common of, as groups that are never split, is no kind.
    """
    if len(table.pairs) > _MOST_IMAGES:
        return []
    found = []
    sides = _name_kinds(table, split.training), _name_kinds(table, split.validation)
    for training, validation in zip(*sides, strict=True):
        if {*training}.isdisjoint(validation) or len({*training, *validation}) > _MOST_KINDS:
            continue
        for kind in sorted({*validation} - {""}):
            share = training.count(kind) / len(training)
            if share <= _RARE:
                rows = [row for row, name in enumerate(validation) if name == kind]
                found.append(RareKind(kind, share, rows))
    return found


def _name_kinds(table: Table, pairs: Pairs) -> list[list[str]]:
    """Return the groups of pairs, their folders, sizes, and whether they are light on dark."""
    rows = table.rows_of(pairs)
    headers = [table.kinds[kind].image for kind in table.columns["kind"][:][rows]]
    folders = (pair.name.removeprefix("validation/").rpartition("/")[0] for pair in pairs)
    is_light = (
        table.columns["thumbnail"][:][rows].mean(axis=1) > 127.5
    )  # each from its darkest to its lightest
    return [
        [f"group {pair.group}" if pair.group else "" for pair in pairs],
        [f"folder {folder}" if folder else "" for folder in folders],
        [f"{header.width}x{header.height} pixels" for header in headers],
        ["images dark on light" if each else "images light on dark" for each in is_light],
    ]
