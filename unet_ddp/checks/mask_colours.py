"""Colours of masks in grey or with a palette, in a data set where their values alone do not say what is equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from unet_ddp.checks.mask_palettes import are_two_classes
from unet_ddp.checks.metadata import MaskMetadata, ScannedPair
from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import list_colours, unpack_colour
from unet_ddp.settings import called

_NOISE = 32  # of 255: so much less may be the brightest pixel of soft masks


def share_colours(
    scanned: list[ScannedPair], config: DataConfig, labels: Labels | None
) -> list[ScannedPair]:
    """Return the pairs of a set with colours in all masks of 8 bit, if one has them or known `labels` do.

    They get them also if a colour has other values in grey masks than in those with a palette. If each value is
    a class, the colours must be the same ones: class ids in grey beside colours are other classes.
    """
    are_coloured = _find_coloured([pair.mask for pair in scanned], config)
    if not (any(are_coloured) if labels is None else labels.rgb):
        return scanned
    shared = [pair._replace(mask=_as_colours(pair.mask)) for pair in scanned]
    if labels is not None:
        return shared
    coloured, grey = set[int](), set[int]()
    for pair, is_coloured in zip(shared, are_coloured, strict=True):
        (coloured if is_coloured else grey).update(pair.mask.values)
    agree = coloured <= grey or grey <= coloured
    if not agree and (config.mask_threshold is not None or config.round_masks):
        one, other = (max(max(unpack_colour(value)) for value in side) for side in (coloured, grey))
        agree = abs(one - other) <= _NOISE  # 0 to 1 beside 0 to 255 are other classes
    return shared if agree else scanned


def _find_coloured(masks: Sequence[MaskMetadata], config: DataConfig) -> list[bool]:
    """Return which masks show the colours that the others may have, too; none if others can't have colours."""
    are_coloured = [mask.header.has_colour_values for mask in masks]
    if not any(are_coloured) and _differ_by_value(masks, config):
        are_coloured = [mask.header.palette is not None for mask in masks]
    others = [mask for mask, shows in zip(masks, are_coloured, strict=True) if not shows]
    if any(mask.header.dtype != "uint8" for mask in others):
        return [False] * len(masks)
    return are_coloured


def _differ_by_value(masks: Sequence[MaskMetadata], config: DataConfig) -> bool:
    """Return whether a colour has an index in palettes and another value in grey, which are two classes.

    The colours in use must be the same ones on both sides: a class id in grey looks nearly black, and is none. Soft
    masks have further greys. A value to ignore may be an index, or a grey.
    """
    have_palettes = {mask.header.palette is not None for mask in masks}
    if len(have_palettes) < 2 or called(config, "label_rules") or config.ignore_index is not None:
        return False
    list_known = cache(list_colours)  # of few palettes, and perhaps 100,000 masks
    greys, palettes = set[tuple[int, int]](), set[tuple[int, int]]()  # colours and values in use
    for mask in masks:
        header = mask.header
        if header.dtype != "uint8":
            return False
        colours = list_known(header.palette, header.bits)
        used = greys if header.palette is None else palettes
        used.update((int(colours[value]), value) for value in mask.values)
    grey, shown = ({colour for colour, _ in used} for used in (greys, palettes))
    is_soft = config.mask_threshold is not None or config.round_masks
    agree = grey == shown or (is_soft and shown <= grey)
    return agree and any(
        colour == other and are_two_classes(value, index, config)
        for colour, value in greys - palettes
        for other, index in palettes
    )


def _as_colours(mask: MaskMetadata) -> MaskMetadata:
    """Return the metadata of a mask as `Source.mask` reads it with `colours`."""
    if mask.header.has_colour_values or mask.header.dtype != "uint8":
        return mask
    colours = list_colours(mask.header.palette, mask.header.bits)
    counts = Counter[int]()  # two indices of a palette may have one colour
    for value, count in zip(mask.values, mask.counts, strict=True):
        counts[int(colours[value])] += count
    values, pixels = zip(*sorted(counts.items()), strict=True)
    return mask._replace(
        header=replace(mask.header, channels=3, is_colour=True, palette=None, bits=8),
        values=values,
        counts=pixels,
    )
