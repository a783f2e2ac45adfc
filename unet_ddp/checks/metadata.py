"""Metadata of the files of a data set, as a scan finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from unet_ddp.data.pairs import Pair, Stamp
from unet_ddp.data.readers.base import Header


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
    hides_shape: bool = False  # see `Source.hides_shape`


Metadata = ImageMetadata | MaskMetadata


class ScannedPair(NamedTuple):
    """A pair with the metadata of its files."""

    pair: Pair
    image: ImageMetadata
    mask: MaskMetadata
