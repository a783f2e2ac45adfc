"""Kinds of validation images that are rare in training."""

from __future__ import annotations

import numpy as np

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import RareKind
from unet_ddp.data.masks import Flags
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.splits import Split

_RARE = 0.1  # share of the training images
_FEW, _MANY = 20, 0.35  # images of a rare kind, and their share
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
    return [
        [f"group {pair.group}" if pair.group else "" for pair in pairs],
        [f"folder {folder}" if folder else "" for folder in folders],
        [f"{header.width}x{header.height} pixels" for header in headers],
        [
            "images dark on light" if each else "images light on dark"
            for each in find_bright(table, pairs)
        ],
    ]


def find_bright(table: Table, pairs: Pairs) -> Flags:
    """Return for each image if it is nearer to its lightest grey than to its darkest, in the mean of its pixels."""
    # A thumbnail is from its darkest to its lightest pixel, 0 to 255.
    bright: Flags = table.columns["thumbnail"][:][table.rows_of(pairs)].mean(axis=1) > 127.5
    return bright


def find_bright_objects(table: Table, pairs: Pairs) -> Flags:
    """Return for each image if it is bright and its mask has several values: noise alone is neither dark nor bright."""
    values = np.diff(table.columns["end"][:], prepend=0)[table.rows_of(pairs)]
    bright: Flags = find_bright(table, pairs) & (values > 1)
    return bright


def is_mixed(bright: Flags) -> bool:
    """Return if a kind is rare among dark and bright images, with enough images to come more often."""
    fewest = min(int(bright.sum()), int((~bright).sum()))
    return _FEW <= fewest <= _MANY * len(bright)


def advise_shares(config: DataConfig, table: Table, training: Pairs) -> list[str]:
    """Return a line on objects in dark and in bright images, if one kind is rare and none has a share."""
    if not config.instances or config.shares or config.balance or len(training) > _MOST_IMAGES:
        return []
    bright = find_bright_objects(table, training)
    if not is_mixed(bright) or any(training.texts("source")):
        return []
    return [
        f"images: {100 * bright.mean():.0f} % are bright, the others dark; --shares auto trains on both alike"
    ]
