"""Rules that the files of a data set must follow, and the properties that they share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.masks import Colour, Flags, Size
from unet_ddp.data.matching import Report, mask_size_message
from unet_ddp.data.pairs import FileKind, Pair
from unet_ddp.data.preprocessing import PixelRange
from unet_ddp.data.readers.base import ImageFormat, bits_of
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError, count_of
from unet_ddp.settings import called

ALIKE = 0.995
"""Correlation of two thumbnails, above which one image is a copy of the other.

Copies that were scaled and compressed again are above it, views of different cars in one studio
below 0.99.
"""

AT_ONCE = 1 << 22
"""Correlations that are computed at a time."""
_MOST_COMPARED = 2 * 10**9  # correlations, of some seconds: 10 % of 150,000 images with the others


def _check_sizes(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line for each mask that has not the size of its image."""
    if config.resize_masks:
        return
    differ = [k for k, kind in enumerate(table.kinds) if kind.mask.size != kind.image.size]
    kinds = table.columns["kind"][:]
    for row in np.flatnonzero(np.isin(kinds, differ)).tolist():
        kind = table.kinds[kinds[row]]
        yield mask_size_message(table.pairs[row].mask, kind.mask.size, kind.image.size)


def _check_kinds(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield lines if colour masks are among others, or images differ in type or channels."""
    yield from _odd_ones(
        table,
        "mask",
        lambda kind: "a colour image" if kind.mask.has_colour_values else "not",
        "is {0}, {other} is {1}: masks of one data set must be of one kind",
    )
    yield from _odd_ones(
        table,
        "image",
        lambda kind: bits_of(kind.image.dtype),
        "has {0}, {other} has {1}: images of one data set must be of one type; convert them",
    )
    if {kind.image.channels for kind in table.kinds} != {1, 3}:  # grey among colour becomes colour
        yield from _odd_ones(
            table,
            "image",
            lambda kind: count_of(kind.image.channels, "channel"),
            "has {0}, {other} has {1}: images of one data set must have equally many; convert them",
        )


def _check_palettes(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line if an index has different colours in two palette masks."""
    if called(config, "label_rules"):
        return
    _, conflict = _merge_palettes(table)
    if conflict:
        yield conflict


def _check_bits(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line if white is 1 in masks of 1 bit, as some programs save them, and 255 in others."""
    whites: dict[tuple[bool, int], Path] = {}
    for row, kind, value, _ in table.values:
        whites.setdefault((table.kinds[kind].mask.is_bilevel, value), table.pairs[row].mask)
    one, other = whites.get((True, 1)), whites.get((False, 255))
    is_one_kind = (
        config.mask_threshold == 0 or called(config, "label_rules") or (False, 1) in whites
    )
    if one and other and not is_one_kind:
        yield f"{one} has 1 bit, so its white is 1, and 255 in {other}: save all masks with 8 bit"


def _check_nodata(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield lines if images name different no-data values, or only some name one."""
    if config.nodata is None:
        yield from _odd_ones(
            table,
            "image",
            lambda kind: "none" if kind.image.nodata is None else f"{kind.image.nodata + 0:.12g}",
            "has no-data value {0}, {other} has {1}; choose one with --nodata VALUE",
        )


def _check_channels(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line if an image can't be converted to --channels."""
    for kind, _, pair in table.groups if config.channels is not None else ():
        found = kind.image.channels
        possible = {found, found + kind.image.has_alpha, *([3] if found == 1 else [])}
        if kind.image.dtype == "uint8" and found in (1, 3) and not kind.image.is_array:
            possible |= {1, 3, 4}
        if config.channels not in possible:
            yield f"--channels {config.channels}: {pair.image} has {found}; leave the flag out"
            return


def _odd_ones(
    table: Table, side: Literal["image", "mask"], describe: Callable[[FileKind], str], text: str
) -> Iterator[str]:
    """Yield a line for each rarer description, with a file of it and one of the commonest."""
    counts: Counter[str] = Counter()
    paths: dict[str, Path] = {}
    for kind, count, pair in table.groups:
        counts[describe(kind)] += count
        paths.setdefault(describe(kind), getattr(pair, side))
    common = max(counts, key=lambda name: counts[name])
    for name in sorted(counts.keys() - {common}):
        more = f" (and {counts[name] - 1} more)" if counts[name] > 1 else ""
        yield f"{paths[name]}{more} " + text.format(name, common, other=paths[common])


_RULES = (
    _check_sizes,
    _check_kinds,
    _check_palettes,
    _check_bits,
    _check_nodata,
    _check_channels,
)
"""In the order in which a run says what is wrong: it stops at the first that is broken."""


def check_rules(config: DataConfig, report: Report, table: Table) -> ImageFormat:
    """Check what files must have in common; return the images' format.

    Grey among colour becomes colour, alpha is dropped.
    """
    for rule in _RULES:
        report.add_problems(list(rule(table, config)))
    headers = [kind.image for kind in table.kinds]
    most = max(header.channels for header in headers)
    channels, nodata = config.channels or most, config.nodata
    named = [header.nodata for header in headers if header.nodata is not None]
    if nodata is None and named:
        nodata = named[0]
        report.notes.append(f"no-data value {nodata:g}, from the files: such pixels are ignored")
    if channels == most and any(header.has_alpha for header in headers):
        advice = "; keep it with --channels 4" if channels == 3 else ""
        report.notes.append(f"alpha: the images' transparency is dropped{advice}")
    ground = config.ground_resolution
    if ground is None and all(header.ground_resolution for header in headers):
        ground = headers[0].ground_resolution
    return ImageFormat(channels, headers[0].dtype, nodata, ground_resolution=ground)


# -- shared properties ---------------------------------------------------------------------


def _merge_palettes(table: Table) -> tuple[tuple[Colour, ...] | None, str]:
    """Return one palette of all masks, None if one has none; and which index in use has two colours.

    Programs pad palettes by different colours.
    """
    palettes: list[tuple[Colour, ...]] = [kind.mask.palette or () for kind in table.kinds]
    longest = max(palettes, key=len)
    merged = dict(enumerate(longest))
    used: dict[int, tuple[Colour, Path]] = {}
    for row, kind, value, _ in table.values if merged else ():
        if not palettes[kind]:
            continue
        colour = palettes[kind][value] if value < len(palettes[kind]) else (0, 0, 0)
        mask = table.pairs[row].mask
        known, path = used.setdefault(value, (colour, mask))
        if known != colour:
            shown = ["#{:02x}{:02x}{:02x}".format(*c) for c in (known, colour)]
            return None, (
                f"index {value} is {shown[0]} in {path} and {shown[1]} in {mask}: palettes "
                "of one data set must agree; save the masks as colour images"
            )
        if value in merged:
            merged[value] = colour
    return tuple(merged.values()) if all(palettes) else None, ""


def common_values(table: Table) -> MaskValues:
    """Return the values of all masks together."""
    counts: Counter[int] = Counter()
    examples: dict[int, str] = {}
    for row, _, value, pixels in table.values:
        counts[value] += pixels
        examples.setdefault(value, str(table.pairs[row].mask))
    lossy = next((str(pair.mask) for kind, _, pair in table.groups if kind.mask.is_lossy), None)
    is_colour = table.kinds[0].mask.has_colour_values
    palette, names = _merge_palettes(table)[0], table.pairs.class_names
    return MaskValues(counts, examples, is_colour, palette, lossy, names)


def crop_size(config: DataConfig, table: Table) -> Size | None:
    """Return one size for all training samples, so that no batch depends on the ranks."""
    if config.crop_size is not None:
        return config.crop_size
    sizes = [scaled_size(*size, config.scale) for size in table.sizes]
    if len(set(sizes)) == 1:  # --ground-resolution rounds up and down
        is_cut = config.ground_resolution is not None or called(config, "plan_cuts")
        return sizes[0] if is_cut else None
    counts = list(table.sizes.values())
    sides = (np.repeat(np.array(side, np.int32), counts) for side in zip(*sizes, strict=True))
    height, width = (float(np.median(side)) for side in sides)
    return max(16, int(height)), max(16, int(width))


def measure_range(table: Table, chosen: Flags, channels: int) -> PixelRange | None:
    """Return range, mean and deviation of all pixels of the chosen images; None for 8 bit."""
    own = (table.columns["moments"].shape[1] - 3) // 2  # channels of the statistics

    def column(k: int) -> Iterator[float]:
        for block in table.blocks("moments", chosen):
            yield from block[block[:, 0] > 0, k].tolist()

    count = sum(column(0)) if own > 0 else 0
    if not count:
        return None
    if own not in (1, channels):  # of a pack; those of files are equally many
        raise UserError(
            f"the statistics are of {count_of(own, 'channel')}, not {channels}; pack again"
        )
    low, high = min(column(1)), max(column(2))
    extent = (high - low) or 1.0
    mean, std = [], []
    for channel in range(3, 3 + channels):
        place = min(channel, 2 + own)
        average, squares = math.fsum(column(place)) / count, math.fsum(column(place + own))
        mean.append((average - low) / extent)
        std.append(math.sqrt(max(squares / count - average**2, 0.0)) / extent or 1.0)
    return PixelRange(low, high, tuple(mean), tuple(std))


# -- copies --------------------------------------------------------------------------------


def normalise(thumbnails: NDArray[Any]) -> NDArray[np.float32]:
    """Return thumbnails (N, 64) of mean 0 and length 1: products are correlations."""
    flat = thumbnails.astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)
    return flat


def find_copies(table: Table, split: Split) -> list[tuple[Pair, Pair]] | None:
    """Return each validation pair whose image is (nearly) a training image, with its training pair.

    None if there are too many to compare.
    """
    if len(split.validation) * len(split.training) > _MOST_COMPARED:
        return None
    validation, training = (
        np.flatnonzero(table.find(side)) for side in (split.validation, split.training)
    )
    if not len(validation) or not len(training):
        return []
    thumbnails = normalise(table.columns["thumbnail"][:])
    found: list[tuple[Pair, Pair]] = []
    others = thumbnails[training].T
    at_once = 1 + AT_ONCE // len(training)
    for first in range(0, len(validation), at_once):
        rows = validation[first : first + at_once]
        alike = thumbnails[rows] @ others  # (rows, training)
        copies = np.flatnonzero(alike.max(axis=1) > ALIKE).tolist()
        best = training[alike[copies].argmax(axis=1)].tolist()
        found += [
            (table.pairs[row], table.pairs[other])
            for row, other in zip(rows[copies].tolist(), best, strict=True)
        ]
    return found
