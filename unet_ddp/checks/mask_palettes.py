"""Palettes of masks: in one data set an index has one colour, and a colour one index."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.masks import Colour
from unet_ddp.settings import called

Palette = tuple[Colour, ...]
_ADVICE = "palettes of one data set must agree; save the masks as colour images"


def check_palettes(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line if an index has different colours, or a colour different indices, in two palette masks."""
    if called(config, "label_rules"):
        return
    for value, colours in _find_colours(table).items():
        if len(colours) > 1:
            (colour, mask), (other_colour, other_mask), *_ = colours.items()
            yield (
                f"index {value} is {_show(colour)} in {mask} and {_show(other_colour)} in {other_mask}: {_ADVICE}"
            )
            return
    for colour, masks in _find_masks(table).items():
        for index, other in combinations(sorted(masks), 2):
            # An index that has the same colour in the same palette is another class.
            ones, others = (
                [mask for palette, mask in masks[k].items() if palette[n : n + 1] != (colour,)]
                for k, n in ((index, other), (other, index))
            )
            if ones and others:
                yield f"{_show(colour)} is index {index} in {ones[0]} and {other} in {others[0]}: {_ADVICE}"
                return


def common_palette(table: Table) -> tuple[Colour, ...] | None:
    """Return one palette of all masks; None if one has none, or two differ in an index in use.

    Programs pad palettes by different colours.
    """
    palettes: list[tuple[Colour, ...]] = [kind.mask.palette or () for kind in table.kinds]
    longest = max(palettes, key=len)
    if not all(palettes):
        return None
    merged = dict(enumerate(longest))
    for value, colours in _find_colours(table).items():
        if len(colours) > 1:
            return None
        if value in merged:
            merged[value] = next(iter(colours))
    return tuple(merged.values())


def _find_colours(table: Table) -> dict[int, dict[Colour, Path]]:
    """Return the colours of each index that palette masks use, and the first mask of each."""
    found: dict[int, dict[Colour, Path]] = {}
    for row, kind, value, _ in table.values:
        palette = table.kinds[kind].mask.palette
        if palette:
            colour = palette[value] if value < len(palette) else (0, 0, 0)
            found.setdefault(value, {}).setdefault(colour, table.pairs[row].mask)
    return found


def _find_masks(table: Table) -> dict[Colour, dict[int, dict[Palette, Path]]]:
    """Return by colour and index in use the palettes that have them, and the first mask of each."""
    found: dict[Colour, dict[int, dict[Palette, Path]]] = {}
    for row, kind, value, _ in table.values:
        palette = table.kinds[kind].mask.palette or ()
        if value < len(palette):
            masks = found.setdefault(palette[value], {}).setdefault(value, {})
            masks.setdefault(palette, table.pairs[row].mask)
    return found


def _show(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
