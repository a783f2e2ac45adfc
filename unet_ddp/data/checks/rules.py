"""Rules that the files of a data set must follow, and the properties that they share."""

from __future__ import annotations

import base64
import math
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.config import DataConfig
from unet_ddp.data.checks.scan import THUMBNAIL, ImageMetadata, ScannedPair, ScanResult
from unet_ddp.data.checks.summary import Report, describe_alpha
from unet_ddp.data.formats.arrays import is_array
from unet_ddp.data.formats.header import ImageFormat, bits_of
from unet_ddp.data.formats.resize import scaled_size
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.labels import Colour
from unet_ddp.data.pairs import Pair, mask_size_message
from unet_ddp.data.preprocessing import PixelRange
from unet_ddp.data.splits import Split

_ALIKE = 0.995  # correlation of thumbnails: above it, one image is a copy of the other
_ROWS = 512  # of the table of correlations at a time


def check_rules(config: DataConfig, report: Report, scan: ScanResult) -> ImageFormat:
    """Check what files must have in common, and return the images' format."""
    if not config.resize_masks:
        report.add_problems(
            [
                mask_size_message(pair.mask, mask.header.size, image.header.size)
                for pair, image, mask in scan.pairs
                if mask.header.size != image.header.size
            ]
        )
    report.add_problems(_check_kinds(scan))
    if config.palette is None or not scan.pairs[0].mask.header.palette:
        report.add_problems(_check_palettes(scan))
    if config.nodata is None:
        report.add_problems(_check_nodata(scan))
    report.add_problems(_check_channels(scan, config.channels))
    form = _common_format(scan, config)
    if config.nodata is None and form.nodata is not None:
        report.notes.append(
            f"no-data value {form.nodata:g}, from the files: such pixels are ignored"
        )
    report.notes += describe_alpha(scan, form)
    return form


def _check_kinds(scan: ScanResult) -> list[str]:
    """Return lines if colour masks are among others, or images differ in type or channels."""
    kinds = {True: "a colour image", False: "not"}
    lines = _odd_ones(
        [(pair.mask, kinds[mask.is_colour]) for pair, _, mask in scan.pairs],
        "is {0}, {other} is {1}: masks of one data set must be of one kind",
    )
    lines += _odd_ones(
        [(pair.image, bits_of(image.header.dtype)) for pair, image, _ in scan.pairs],
        "has {0}, {other} has {1}: images of one data set must be of one type; convert them",
    )
    channels = [(pair.image, image.header.channels) for pair, image, _ in scan.pairs]
    if {count for _, count in channels} != {1, 3}:  # grey among colour becomes colour
        lines += _odd_ones(
            [(path, str(count)) for path, count in channels],
            "has {0} channels, {other} has {1}: images of one data set must have equally many; "
            "convert them",
        )
    return lines


def _check_palettes(scan: ScanResult) -> list[str]:
    """Return a line if an index has different colours in two palette masks."""
    seen: dict[int, tuple[Colour, Path]] = {}
    for pair, _, mask in scan.pairs:
        palette = mask.header.palette
        for value in mask.values if palette else ():
            colour = palette[value] if palette and value < len(palette) else (0, 0, 0)
            known, path = seen.setdefault(value, (colour, pair.mask))
            if known != colour:
                shown = ["#{:02x}{:02x}{:02x}".format(*c) for c in (known, colour)]
                return [
                    f"index {value} is {shown[0]} in {path} and {shown[1]} in {pair.mask}: palettes "
                    "of one data set must agree; save the masks as colour images"
                ]
    return []


def _check_nodata(scan: ScanResult) -> list[str]:
    """Return lines if images name different no-data values, or only some name one."""
    values = [(pair.image, image.header.nodata) for pair, image, _ in scan.pairs]
    return _odd_ones(
        [(path, "none" if value is None else f"{value:g}") for path, value in values],
        "has no-data value {0}, {other} has {1}; choose one with --nodata VALUE",
    )


def _odd_ones(kinds: list[tuple[Path, str]], text: str) -> list[str]:
    """Return a line for each rarer kind, with a file of it and one of the commonest kind."""
    counts = Counter(kind for _, kind in kinds)
    common = max(counts, key=lambda kind: counts[kind])
    example = next(path for path, kind in kinds if kind == common)
    lines = []
    for kind in sorted(counts.keys() - {common}):
        odd = next(path for path, found in kinds if found == kind)
        more = f" (and {counts[kind] - 1} more)" if counts[kind] > 1 else ""
        lines.append(f"{odd}{more} " + text.format(kind, common, other=example))
    return lines


def _check_channels(scan: ScanResult, channels: int | None) -> list[str]:
    """Return a line if an image can't be converted to `channels`."""
    for pair, image, _ in scan.pairs if channels is not None else ():
        found, has_alpha = image.header.channels, image.header.has_alpha
        possible = {found, found + has_alpha}
        if image.header.dtype == "uint8" and found in (1, 3) and not is_array(pair.image):
            possible |= {1, 3, 4}
        elif found == 1:
            possible.add(3)
        if channels not in possible:
            return [f"--channels {channels}: {pair.image} has {found}; leave the flag out"]
    return []


# -- shared properties ---------------------------------------------------------------------


def _common_format(scan: ScanResult, config: DataConfig) -> ImageFormat:
    """Return the format of all images: grey among colour becomes colour, alpha is dropped."""
    headers = [image.header for _, image, _ in scan.pairs]
    channels = config.channels or max(header.channels for header in headers)
    values = [config.nodata, *(header.nodata for header in headers)]
    nodata = next((value for value in values if value is not None), None)
    return ImageFormat(channels, headers[0].dtype, nodata)


def common_values(scan: ScanResult) -> MaskValues:
    """Return the values of all masks together."""
    counts: Counter[int] = Counter()
    examples: dict[int, str] = {}
    for pair, _, mask in scan.pairs:
        for value, count in zip(mask.values, mask.counts, strict=True):
            counts[value] += count
            examples.setdefault(value, str(pair.mask))
    first = scan.pairs[0].mask
    palette = first.header.palette
    if any(mask.header.palette != palette for _, _, mask in scan.pairs):
        palette = None
    lossy = next((str(pair.mask) for pair, _, mask in scan.pairs if mask.header.is_lossy), None)
    return MaskValues(counts, examples, first.is_colour, palette, lossy)


def crop_size(config: DataConfig, scan: ScanResult) -> tuple[int, int] | None:
    """Return one size for all training samples, so that no batch depends on the ranks."""
    if config.crop_size is not None:
        return config.crop_size
    sizes = [scaled_size(*size, config.scale) for size in scan.sizes]
    if len(set(sizes)) == 1:
        return None
    heights, widths = zip(*sizes, strict=True)
    return max(16, int(statistics.median(heights))), max(16, int(statistics.median(widths)))


def measure_range(images: list[ImageMetadata], channels: int) -> PixelRange | None:
    """Return range, mean and deviation of all pixels of `images`; None for 8 bit."""
    images = [image for image in images if image.num_pixels]
    if not images:
        return None
    assert all(len(image.sums) in (1, channels) for image in images)
    low, high = min(image.low for image in images), max(image.high for image in images)
    extent = (high - low) or 1.0
    count = sum(image.num_pixels for image in images)
    mean, std = [], []
    for channel in range(channels):
        sums = math.fsum(image.sums[channel % len(image.sums)] for image in images)
        squares = math.fsum(image.squares[channel % len(image.squares)] for image in images)
        average = sums / count
        mean.append((average - low) / extent)
        std.append(math.sqrt(max(squares / count - average**2, 0.0)) / extent or 1.0)
    return PixelRange(low, high, tuple(mean), tuple(std))


# -- copies --------------------------------------------------------------------------------


def find_copies(scan: ScanResult, split: Split) -> list[tuple[Pair, Pair]]:
    """Return validation pairs whose images are (nearly) those of training pairs, with those.

    By their thumbnails: the correlation of 8x8 grey pixels is above 0.995 for copies that were
    scaled and compressed again, and below 0.99 for views of different cars in one studio.
    """
    validation, training = scan.select(split.validation), scan.select(split.training)
    if not validation or not training:
        return []
    left, right = _unpack_thumbnails(validation), _unpack_thumbnails(training)
    found: list[tuple[Pair, Pair]] = []
    for first in range(0, len(left), _ROWS):
        alike = left[first : first + _ROWS] @ right.T  # (rows, training)
        best = alike.argmax(axis=1)
        rows = np.flatnonzero(alike[np.arange(len(best)), best] > _ALIKE)
        found += [(validation[first + row].pair, training[best[row]].pair) for row in rows]
    return found


def _unpack_thumbnails(pairs: list[ScannedPair]) -> NDArray[np.float32]:
    """Return the images' thumbnails (N, 64) of mean 0 and length 1: products are correlations."""
    flat = np.zeros((len(pairs), THUMBNAIL**2), np.float32)
    for row, (_, image, _) in zip(flat, pairs, strict=True):
        if image.thumbnail:
            row[:] = np.frombuffer(base64.b64decode(image.thumbnail), np.uint8)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat
