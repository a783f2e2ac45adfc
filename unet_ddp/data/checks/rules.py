"""What the files of a data set must have in common, and whether they do."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

from unet_ddp.data.checks.metadata import ImageMetadata, unpack_thumbnails
from unet_ddp.data.checks.scan import Findings
from unet_ddp.data.formats.arrays import is_array
from unet_ddp.data.formats.header import ImageFormat, bits_of
from unet_ddp.data.pairs import Pair
from unet_ddp.data.preprocessing import PixelRange

_ALIKE = 0.995  # correlation of thumbnails: above it, one image is a copy of the other
_ROWS = 512  # of the table of correlations at a time


def compare_sizes(found: Findings) -> list[str]:
    """A line for each mask that has not the size of its image."""
    lines = []
    for pair, image, mask in zip(found.pairs, found.images, found.masks, strict=True):
        size, other = (image.width, image.height), (mask.width, mask.height)
        if size == other:
            continue
        turned = (
            "one of them is turned by 90 degrees"
            if size == other[::-1]
            else "make their sizes equal, or give --resize-masks"
        )
        lines.append(
            f"{pair.mask} has {other[0]}x{other[1]} pixels, its image {pair.image} has "
            f"{size[0]}x{size[1]}; {turned}"
        )
    return lines


def compare_kinds(found: Findings) -> list[str]:
    """A line where colour masks are among others, or images of different types or bands."""
    lines = _odd_ones(
        [
            (pair.mask, "a colour image" if mask.is_colour else "not")
            for pair, mask in zip(found.pairs, found.masks, strict=True)
        ],
        "is {0}, {other} is {1}: masks of one data set must be of one kind",
    )
    lines += _odd_ones(
        [
            (pair.image, bits_of(image.dtype))
            for pair, image in zip(found.pairs, found.images, strict=True)
        ],
        "has {0}, {other} has {1}: images of one data set must be of one type; convert them",
    )
    channels = {image.channels for image in found.images}
    if len(channels) > 1 and channels != {1, 3}:
        lines += _odd_ones(
            [
                (pair.image, str(image.channels))
                for pair, image in zip(found.pairs, found.images, strict=True)
            ],
            "has {0} channels, {other} has {1}: images of one data set must have equally many; "
            "convert them",
        )
    return lines


def compare_palettes(found: Findings) -> list[str]:
    """A line where one index has different colours in two palette masks."""
    seen: dict[int, tuple[tuple[int, int, int], Path]] = {}
    for pair, mask in zip(found.pairs, found.masks, strict=True):
        for value in mask.values if mask.palette else ():
            colour = (
                mask.palette[value] if mask.palette and value < len(mask.palette) else (0, 0, 0)
            )
            known = seen.setdefault(value, (colour, pair.mask))
            if known[0] != colour:
                shown = ["#{:02x}{:02x}{:02x}".format(*c) for c in (known[0], colour)]
                return [
                    f"index {value} is {shown[0]} in {known[1]} and {shown[1]} in {pair.mask}: palettes "
                    "of one data set must agree; save the masks as colour images"
                ]
    return []


def compare_nodata(found: Findings) -> list[str]:
    """A line where files name different no-data values, or only some name one."""
    named = [(p.image, i.nodata) for p, i in zip(found.pairs, found.images, strict=True)]
    return _odd_ones(
        [(path, "no no-data value" if value is None else f"{value:g}") for path, value in named],
        "says {0}, {other} says {1}: say which by --nodata VALUE",
    )


def _odd_ones(kinds: list[tuple[Path, str]], text: str) -> list[str]:
    """The rarer kinds, each with one file, beside a file of the commonest."""
    counts = Counter(kind for _, kind in kinds)
    common = max(counts, key=lambda kind: counts[kind])
    example = next(path for path, kind in kinds if kind == common)
    lines = []
    for kind in sorted(counts.keys() - {common}):
        odd = [path for path, found in kinds if found == kind]
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        lines.append(f"{odd[0]}{more} " + text.format(kind, common, other=example))
    return lines


def common_format(found: Findings, *, channels: int | None, nodata: float | None) -> ImageFormat:
    """Channels and type for all images: grey among colour becomes colour, alpha is dropped."""
    if channels is None:
        channels = max(image.channels for image in found.images)
    if nodata is None:
        nodata = next((i.nodata for i in found.images if i.nodata is not None), None)
    return ImageFormat(channels, found.images[0].dtype, nodata)


def check_channels(found: Findings, channels: int | None) -> list[str]:
    """A line where the images can't be given the channels that were asked for."""
    if channels is None:
        return []
    for pair, image in zip(found.pairs, found.images, strict=True):
        own = image.channels + image.has_alpha
        from_picture = (
            image.dtype == "uint8"
            and image.channels in (1, 3)
            and channels in (1, 3, 4)
            and not is_array(pair.image)
        )
        if (
            channels not in (image.channels, own)
            and not from_picture
            and (image.channels, channels) != (1, 3)
        ):
            return [f"--channels {channels}: {pair.image} has {image.channels}; leave the flag out"]
    return []


def measure_range(images: list[ImageMetadata], channels: int) -> PixelRange | None:
    """Range, mean and spread over all pixels of `images`; None where they are 8 bit or not known."""
    known = [image for image in images if image.count]
    if not known:
        return None
    assert all(len(image.sums) in (1, channels) for image in known)
    low, high = min(image.low for image in known), max(image.high for image in known)
    extent = (high - low) or 1.0
    count = sum(image.count for image in known)
    mean, std = [], []
    for channel in range(channels):
        sums = math.fsum(image.sums[channel % len(image.sums)] for image in known)
        squares = math.fsum(image.squares[channel % len(image.squares)] for image in known)
        average = sums / count
        mean.append((average - low) / extent)
        std.append(math.sqrt(max(squares / count - average**2, 0.0)) / extent or 1.0)
    return PixelRange(low, high, tuple(mean), tuple(std))


def constant_images(found: Findings) -> list[Pair]:
    """Images of one colour."""
    return [p for p, image in zip(found.pairs, found.images, strict=True) if not image.thumbnail]


def alike_across(
    training: list[ImageMetadata], validation: list[ImageMetadata]
) -> list[tuple[int, int]]:
    """(validation, training) numbers of images that are the same, or nearly.

    By their thumbnails: the correlation of 8x8 grey pixels is above 0.995 for copies that were
    scaled and compressed again, and below 0.99 for views of different cars in one studio.
    """
    shown = unpack_thumbnails([image.thumbnail for image in validation])
    learnt = unpack_thumbnails([image.thumbnail for image in training])
    found: list[tuple[int, int]] = []
    for first in range(0, len(shown), _ROWS):
        alike = shown[first : first + _ROWS] @ learnt.T  # (rows, training)
        best = alike.argmax(axis=1)
        rows = np.flatnonzero(alike[np.arange(len(best)), best] > _ALIKE)
        found += [(first + int(row), int(best[row])) for row in rows]
    return found
