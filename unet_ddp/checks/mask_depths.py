"""Depths of masks: white is 1, 255 or 65535 by the bits of a file, and class ids are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from unet_ddp.checks.mask_palettes import are_two_classes, check_palettes
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.readers.base import Header
from unet_ddp.settings import called

_WHITE_16 = 65535  # of 16 bit


def check_bits(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line if a grey is, e.g., 1 in masks of 1 bit, as some programs save them, and 255 in others."""
    found: dict[tuple[int, int], Path] = {}
    for row, kind, value, _ in table.values:
        found.setdefault((_bits_of_grey(table.kinds[kind].mask), value), table.pairs[row].mask)
    if called(config, "label_rules"):
        return
    deep = [value for bits, value in found if bits == 16]
    # Else they are class ids: one of them may be a multiple of 257 by chance.
    are_greys = _WHITE_16 in deep and not any(value % 257 for value in deep)
    for (bits, value), one in sorted(found.items(), reverse=True):
        grey = value * 255 // ((1 << bits) - 1)
        other = found.get((8, grey))
        is_new = (bits < 8 or (bits == 16 and are_greys)) and value and (8, value) not in found
        if is_new and other and are_two_classes(value, grey, config):
            name = "white" if grey == 255 else "grey"
            yield (
                f"{one} has {bits} bit, so its {name} is {value}, and {grey} in {other}: save all masks with 8 bit"
            )
            return


def _bits_of_grey(mask: Header) -> int:
    return 16 if mask.dtype == "uint16" else mask.bits


def find_mixture(table: Table, values: MaskValues, config: DataConfig) -> str | None:
    """Return what is wrong if a class is 1 in some masks and white in the others; None otherwise.

    Of the flags that say what they are, it names those that no rule of palettes or bits refuses.
    """
    if values.values not in ([0, 1, 255], [0, 1, _WHITE_16]):
        return None
    white = values.values[-1]
    ones = set[int]()
    whites = set[int]()
    for _, part, row in table.value_blocks():
        value = table.columns["value"][part]
        ones.update(row[value == 1].tolist())
        whites.update(row[value == white].tolist())
    if ones & whites:  # white may be void
        return None
    remedies = {
        f"--mask-threshold 0 if 1 and {white} are one class": replace(config, mask_threshold=0),
        f"--ignore-index {white} if {white} is void": replace(config, ignore_index=white),
        "--classes 3": replace(config, classes=3),
    }
    rules = check_palettes, check_bits
    possible = [
        text
        for text, changed in remedies.items()
        if not any(line for rule in rules for line in rule(table, changed))
    ]
    if not possible:
        return None
    *others, last = possible
    advice = f"{', '.join(others)}, or {last}" if others else last
    return f"masks of 0 and 1 ({values.examples[1]}) and of 0 and {white} ({values.examples[white]}): use {advice}"
