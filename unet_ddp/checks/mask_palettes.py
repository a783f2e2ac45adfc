"""Palettes of masks: in one data set an index has one colour, and a colour one index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.masks import Colour
from unet_ddp.settings import called

Palette = tuple[Colour, ...]
_ADVICE = "palettes of one data set must agree; save the masks as colour images"


def are_two_classes(value: int, other: int, config: DataConfig) -> bool:
    """Return whether the flags leave two mask values apart: none is ignored, and a threshold is between them."""
    threshold = config.mask_threshold
    is_apart = threshold is None or (value > threshold) != (other > threshold)
    return is_apart and config.ignore_index not in (value, other)


def check_palettes(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line if an index has different colours, or a colour different indices, in two palette masks.

    With a threshold, a colour may have many indices on one side of it, and an index any colour.
    """
    if called(config, "label_rules"):
        return
    for value, colours in _find_colours(table).items():
        is_class = config.mask_threshold is None and value != config.ignore_index
        if len(colours) > 1 and is_class:
            (colour, mask), (other_colour, other_mask), *_ = colours.items()
            yield (
                f"index {value} is {_show(colour)} in {mask} and {_show(other_colour)} in {other_mask}: {_ADVICE}"
            )
            return
    for colour, masks in _find_masks(table).items():
        for index, other in combinations(sorted(masks), 2):
            # An index that has the same colour in the same palette is another class.
            ones, others = (
                [mask for palette, mask in masks[k].values() if palette[n : n + 1] != (colour,)]
                for k, n in ((index, other), (other, index))
            )
            if ones and others and are_two_classes(index, other, config):
                advice = _ADVICE
                as_two = replace(config, mask_threshold=0)
                # With a number of classes or their names, a threshold is refused.
                is_free = config.classes is None and config.class_names is None
                if index > 0 and is_free and not any(check_palettes(table, as_two)):
                    advice += ", or use --mask-threshold 0 if all indices above 0 are one class"
                yield f"{_show(colour)} is index {index} in {ones[0]} and {other} in {others[0]}: {advice}"
                return


def common_palette(table: Table, ignore: int | None = None) -> Palette | None:
    """Return one palette of all masks; None if one has none, or two differ in an index in use.

    Programs pad palettes by different colours. The index `ignore` may have any.
    """
    palettes: list[Palette] = [kind.mask.palette or () for kind in table.kinds]
    longest = max(palettes, key=len)
    if not all(palettes):
        return None
    merged = dict(enumerate(longest))
    for value, colours in _find_colours(table).items():
        if len(colours) > 1 and value != ignore:
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
            colour = palette[value] if 0 <= value < len(palette) else (0, 0, 0)
            found.setdefault(value, {}).setdefault(colour, table.pairs[row].mask)
    return found


def _find_masks(table: Table) -> dict[Colour, dict[int, dict[int, tuple[Palette, Path]]]]:
    """Return by colour and index in use the palettes that have them, by a number, and the first mask of each."""
    numbers: dict[Palette, int] = {}  # a palette's hash costs much
    palettes = [kind.mask.palette or () for kind in table.kinds]
    kinds = [numbers.setdefault(palette, len(numbers)) for palette in palettes]
    found: dict[Colour, dict[int, dict[int, tuple[Palette, Path]]]] = {}
    for row, kind, value, _ in table.values:
        palette = palettes[kind]
        if 0 <= value < len(palette):
            masks = found.setdefault(palette[value], {}).setdefault(value, {})
            masks.setdefault(kinds[kind], (palette, table.pairs[row].mask))
    return found


def _show(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
