"""Rules that the files of a data set must follow, and the properties that they share."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from unet_ddp.checks.mask_depths import check_bits
from unet_ddp.checks.mask_palettes import check_palettes, common_palette
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.mask_sizes import is_rotated, keeps_proportions, mask_size_message
from unet_ddp.data.masks import Flags, Size
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import FileKind
from unet_ddp.data.preprocessing import PixelRange
from unet_ddp.data.readers.base import ImageFormat, bits_of
from unet_ddp.data.readers.read import hidden_shape_message
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.errors import UserError, count_of


def _check_sizes(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line for each mask that has not the size of its image, and can't or shall not be resized."""
    is_wrong = is_rotated if config.resize_masks else operator.ne
    for mask, size, image_size in _find_sizes(table, is_wrong):
        yield mask_size_message(mask, size, image_size, "resize one, or use --resize-masks")


def _find_sizes(
    table: Table, are_wrong: Callable[[Size, Size], bool]
) -> Iterator[tuple[Path, Size, Size]]:
    """Yield each mask that `are_wrong` refuses for its size and its image's, with both."""
    wrong = [k for k, kind in enumerate(table.kinds) if are_wrong(kind.mask.size, kind.image.size)]
    kinds = table.columns["kind"][:]
    for row in np.flatnonzero(np.isin(kinds, wrong)).tolist():
        kind = table.kinds[kinds[row]]
        yield table.pairs[row].mask, kind.mask.size, kind.image.size


def _warn_of_proportions(table: Table) -> Iterator[str]:
    """Yield a line about masks that resizing may distort."""
    found = list(
        _find_sizes(table, lambda *sizes: not (keeps_proportions(*sizes) or is_rotated(*sizes)))
    )
    if found:
        advice = "resizing is right if it was squashed; if it was cropped or turned, mend it"
        example = mask_size_message(*found[0], advice)
        yield f"{count_of(len(found), 'mask')} of other proportions than the image, e.g. {example}"


def _check_kinds(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield lines if colour masks are among others, or images differ in type or channels."""
    name = "a colour image" + " or of 3 bands" * config.overlap
    yield from _odd_ones(
        table,
        "mask",
        lambda kind: name if kind.mask.has_colour_values else "not",
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


def _check_transparency(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line for each mask that has one colour and its shape in the transparency, beside masks that differ."""
    if table.hidden and len({found.value for found in table.values}) > 1:
        yield from (hidden_shape_message(table.pairs[row].mask) for row in table.hidden)


def _check_nodata(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield lines if images name different no-data values, or only some name one."""
    if config.nodata is None:
        yield from _odd_ones(
            table,
            "image",
            _name_nodata,
            "has no-data value {0}, {other} has {1}; choose one with --nodata VALUE",
        )


def _name_nodata(kind: FileKind) -> str:
    nodata = kind.image.nodata
    return "none" if nodata is None else f"{nodata + 0:.12g}"  # -0 is 0


def _check_channels(table: Table, config: DataConfig) -> Iterator[str]:
    """Yield a line if an image can't be converted to --channels."""
    if config.channels is None:
        return
    for kind, _, pair in table.groups:
        header = kind.image
        found = header.channels
        possible = {found}
        if header.has_alpha:
            possible.add(found + 1)
        if found == 1:
            possible.add(3)
        if header.dtype == "uint8" and found in (1, 3) and not header.is_array:
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
        name = describe(kind)
        counts[name] += count
        paths.setdefault(name, getattr(pair, side))
    common = max(counts, key=lambda name: counts[name])
    for name in sorted(counts.keys() - {common}):
        file = str(paths[name])
        if counts[name] > 1:
            file += f" (and {counts[name] - 1} more)"
        yield f"{file} {text.format(name, common, other=paths[common])}"


_RULES = (
    _check_sizes,
    _check_kinds,
    _check_transparency,
    check_palettes,
    check_bits,
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
    if config.resize_masks:
        report.warnings += _warn_of_proportions(table)
    headers = [kind.image for kind in table.kinds]
    most = max(header.channels for header in headers)
    channels = config.channels or most
    nodata = config.nodata
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


def common_values(table: Table, ignore: int | None = None) -> MaskValues:
    """Return the values of all masks together; the colour of the value `ignore` may differ."""
    counts: Counter[int] = Counter()
    examples: dict[int, str] = {}
    for row, _, value, pixels in table.values:
        counts[value] += pixels
        examples.setdefault(value, str(table.pairs[row].mask))
    palette = common_palette(table, ignore)
    differ = palette is None and any(kind.mask.palette for kind in table.kinds)
    lossy = [str(pair.mask) for kind, _, pair in table.groups if kind.mask.is_lossy]
    return MaskValues(
        counts,
        examples,
        rgb=table.kinds[0].mask.has_colour_values,
        palette=palette,
        clash=next(check_palettes(table, DataConfig(ignore_index=ignore)), None)
        if differ
        else None,
        lossy=lossy[0] if lossy else None,
        has_alpha=any(kind.mask.has_alpha for kind in table.kinds),
        names=table.pairs.class_names,
    )


def crop_size(config: DataConfig, table: Table) -> Size | None:
    """Return one size for all training samples, so that no batch depends on the ranks."""
    if config.crop_size is not None:
        return config.crop_size
    sizes = [scaled_size(*size, config.scale) for size in table.sizes]
    if len(set(sizes)) == 1:  # --ground-resolution rounds up and down
        is_whole = config.ground_resolution is None and config.scale_jitter is None
        return None if is_whole else sizes[0]
    counts = list(table.sizes.values())
    heights, widths = np.array(sizes, np.int32).T
    height = np.median(np.repeat(heights, counts))
    width = np.median(np.repeat(widths, counts))
    return max(16, int(height)), max(16, int(width))


def measure_range(table: Table, chosen: Flags, channels: int) -> PixelRange | None:
    """Return range, mean and deviation of all pixels of the chosen images; None for 8 bit."""
    measured = (table.columns["moments"].shape[1] - 3) // 2  # channels

    def column(k: int) -> Iterator[float]:
        for block in table.blocks("moments", chosen):
            yield from block[block[:, 0] > 0, k].tolist()

    count = sum(column(0)) if measured > 0 else 0
    if not count:
        return None
    if measured not in (1, channels):  # of a pack; those of files are equally many
        raise UserError(
            f"the statistics are of {count_of(measured, 'channel')}, not {channels}; pack again"
        )
    low = min(column(1))
    high = max(column(2))
    extent = (high - low) or 1.0
    mean = []
    std = []
    for channel in range(channels):
        k = 3 + min(channel, measured - 1)
        average = math.fsum(column(k)) / count
        square = math.fsum(column(k + measured)) / count
        mean.append((average - low) / extent)
        std.append(math.sqrt(max(square - average**2, 0.0)) / extent or 1.0)
    return PixelRange(low, high, tuple(mean), tuple(std))
