"""Metadata of the files of a data set, as a scan finds them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import list_colours, unpack_colour
from unet_ddp.data.pairs import Pair, Stamp
from unet_ddp.data.readers.base import Header

_NOISE = 32  # of 255: so much less may be the brightest pixel of soft masks


class ScannedFile(NamedTuple):
    """A file to be scanned."""

    path: Path
    is_mask: bool
    stamp: Stamp | None  # of an object in storage


class ImageMetadata(NamedTuple):
    """Header and statistics of an image."""

    header: Header
    stamp: Stamp  # size and time of the file
    thumbnail: str  # 8x8 grey pixels, stretched, in base64; empty for an image of one colour
    num_pixels: int = 0  # that the statistics are of; 0 for 8-bit images, which need none
    low: float = 0.0
    high: float = 0.0
    sums: tuple[float, ...] = ()  # of the pixels per channel
    squares: tuple[float, ...] = ()  # sums of the squared pixels per channel
    place: tuple[Any, ...] | None = None  # on a map; see `OpenFile.place`


class MaskMetadata(NamedTuple):
    """Header and values of a mask."""

    header: Header
    stamp: Stamp
    values: tuple[int, ...]  # sorted
    counts: tuple[int, ...]  # pixels of each value
    place: tuple[Any, ...] | None = None  # on a map; see `OpenFile.place`


Metadata = ImageMetadata | MaskMetadata


class ScannedPair(NamedTuple):
    """A pair with the metadata of its files."""

    pair: Pair
    image: ImageMetadata
    mask: MaskMetadata


def share_colours(
    scanned: list[ScannedPair], config: DataConfig, labels: Labels | None
) -> list[ScannedPair]:
    """Return the pairs of a set with colours in all masks of 8 bit, if one has them or known `labels` do.

    If each value is a class, they must be the same ones: class ids in grey beside colours are other classes.
    """
    has_colours = any(mask.header.has_colour_values for _, _, mask in scanned)
    if not (has_colours if labels is None else labels.rgb):
        return scanned
    shared = [pair._replace(mask=_as_colours(pair.mask)) for pair in scanned]
    if labels is not None:
        return shared
    coloured, grey = set[int](), set[int]()
    for (_, _, mask), (_, _, found) in zip(scanned, shared, strict=True):
        (coloured if mask.header.has_colour_values else grey).update(found.values)
    agree = coloured <= grey or grey <= coloured
    if not agree and (config.mask_threshold is not None or config.round_masks):
        one, other = (max(max(unpack_colour(value)) for value in side) for side in (coloured, grey))
        agree = abs(one - other) <= _NOISE  # 0 to 1 beside 0 to 255 are other classes
    return shared if agree else scanned


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
