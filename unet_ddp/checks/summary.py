"""Lines that describe a data set, and warnings of what looks wrong in it."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from unet_ddp.checks.near_duplicates import Copies
from unet_ddp.checks.sides import class_blocks
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import pack_colour
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.base import ImageFormat, bits_of
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.data.splits import Split
from unet_ddp.errors import count_of, join_some

_SHOWN = 16  # classes in a line
_RARE = 5e-4  # share of the pixels below which a value is suspicious
_MOST_RARE = 3  # warnings of them
_BRIGHT = 0.85  # share of the pixels above which the foreground may be the background
_NEAR = 2  # of 255, in each channel: colours so near to each other may be one class
_STRAY = 0.02  # of the pixels of a colour: a stray edge beside it has no more
_APART = 2  # times as many pixels as stray edges have the values that --round-masks finds by their number
_LARGEST_ID = 63  # colours of such channels alone may be ids of classes
_INVERTED = tuple((k, k, k) for k in range(255, -1, -1))  # ImageJ's palette of 0 and 255
_LEFT = 2  # pixels of a class in an image that are nearly nothing


def describe_images(table: Table, form: ImageFormat, *, count: int, scale: float) -> str:
    """Return a line with number, size and kind of the images."""
    sizes = sorted(table.sizes)
    height, width = sizes[-1]
    size = f"{width}x{height}"
    if len(sizes) > 1:
        size = f"{len(sizes)} sizes up to {size}"
    rows, columns = scaled_size(height, width, scale)
    colours = {1: "grey", 3: "colour"}.get(form.channels, f"{form.channels} bands")
    return (
        f"data: {count_of(count, 'pair')}, {size} pixels ({columns}x{rows} at scale {scale:g}), {colours}, "
        f"{bits_of(form.dtype)}"
    )


def warn_of_images(table: Table, copies: Copies | None) -> list[str]:
    """Return warnings of images of one colour, and of copies across the split."""
    lines = []
    everything = np.ones(len(table.pairs), bool)
    shows = [block.any(axis=1) for block in table.blocks("thumbnail", everything)]
    blank = np.flatnonzero(~np.concatenate(shows)).tolist()
    if blank:
        first = table.pairs[blank[0]].image
        lines.append(
            f"{count_of(len(blank), 'image')} of one colour, which shows nothing, e.g. {first}"
        )
    if copies and copies.examples:
        one, other = copies.examples[0]
        about = "" if copies.is_exact else "about "
        lines.append(
            f"{about}{count_of(copies.total, 'validation image')} (nearly) the same as training images, e.g. "
            f"{one.image} as {other.image}: scores will be too good; remove them, or keep them "
            "together with --group-pattern"
        )
    return lines


def warn_of_classes(table: Table, values: MaskValues, labels: Labels, split: Split) -> list[str]:
    """Return warnings of classes that can't be learnt or scored, or look like mistakes."""
    training = class_pixels(table, labels, split.training)
    validation = class_pixels(table, labels, split.validation)
    lines = labels.doubt(values.values, values.show(values.values))
    names = labels.class_names
    counts = list(zip(names, training, validation, strict=True))
    if labels.objects is not None:
        del counts[-1]  # the border, which no mask has
    only = [name for name, n, m in counts if m and not n]
    nowhere = [name for name, n, m in counts if not (n or m)]
    never = [name for name, n, m in counts if n and not m]
    if only:
        lines.append(
            f"class {join_some(only, _SHOWN)} occurs in validation only: it can't be learnt; choose another "
            "split with --seed or --validation"
        )
    if nowhere:
        lines.append(
            f"class {join_some(nowhere, _SHOWN)} occurs in no mask: it can be neither learnt nor scored; "
            "leave it out, or add images of it"
        )
    if never and split.validation:
        lines.append(
            f"class {join_some(never, _SHOWN)} does not occur in validation: it gets no score"
        )
    if labels.threshold is None and not labels.rounded:
        lines += _find_near(values, labels)
        lines += _find_rare(values, labels)[:_MOST_RARE]
    return lines + (_find_black(values, labels) or _find_inverted(training, labels))


def _find_black(values: MaskValues, labels: Labels) -> list[str]:
    """Return a warning if black is the foreground, as adaptive palettes number it, and has more pixels than index 0."""
    palette, counts, least = values.palette or (), values.counts, labels.threshold or 0
    used = {*counts} - {labels.ignore}
    found = [k for k, colour in enumerate(palette) if k in used and not any(colour)]
    is_chosen = labels.names is not None or labels.values[0] > labels.values[1]
    are_two = labels.is_binary and not is_chosen
    if not (are_two or labels.objects) or len(found) != 1 or palette == _INVERTED:
        return []
    (index,) = found
    if index <= least or 0 not in used or counts[index] <= counts[0]:
        return []
    are_apart = are_two and all(value <= least or value == index for value in used)
    advice = "use --invert" if are_apart else "save the masks as colour images"
    return [
        f"index 0 of the masks is #{pack_colour(palette[0]):06x}, and the foreground has black, index {index}: if black is "
        f"the background, {advice}"
    ]


def _find_inverted(pixels: list[int], labels: Labels) -> list[str]:
    """Return a warning if nearly all pixels of two classes are foreground."""
    share = pixels[-1] / (sum(pixels) or 1)
    if not labels.is_binary or share <= _BRIGHT:
        return []
    is_inverted = labels.values[0] > labels.values[1]
    advice = "leave --invert out" if is_inverted else "use --invert"
    return [
        f"{share:.0%} of the pixels are class {labels.class_names[1]}: if that is the background, {advice}"
    ]


def warn_of_vanishing(table: Table, labels: Labels, scale: float) -> list[str]:
    """Return a warning of classes of which images at a scale keep nearly nothing, in most masks that have them.

    A new pixel has the class at its centre, so the mean share of a class stays.
    """
    if scale == 1:
        return []
    having, lost = np.zeros((2, labels.num_classes), np.int64)
    for k, rows, pixels in class_blocks(table, labels):
        _, mask = np.unique(rows, return_inverse=True)
        areas = np.bincount(mask, pixels)
        having[k] += len(areas)
        lost[k] += np.count_nonzero(areas * scale**2 < _LEFT)
    counts = zip(labels.class_names, lost.tolist(), having.tolist(), strict=True)
    found = [f"{name} in {n} of {count_of(m, 'image')}" for name, n, m in counts if 2 * n > m]
    line = f"--scale {scale:g} leaves nearly nothing of class {join_some(found, _SHOWN)}: use a larger --scale"
    return [line] if found else []


def warn_of_large_crops(table: Table, config: DataConfig) -> list[str]:
    """Return a warning of crops with more than twice the pixels of any image: the rest is no data."""
    crop, scale = config.crop_size, config.scale
    sizes = [scaled_size(*size, scale) for size in table.sizes]
    height, width = max(sizes, key=lambda size: size[0] * size[1])
    if crop is None or config.ground_resolution or crop[0] * crop[1] <= 2 * height * width:
        return []
    return [
        f"--crop-size {crop[0]} {crop[1]}: the largest image has {width}x{height} pixels at scale {scale:g}; the rest "
        "of a crop is computed for nothing"
    ]


def _find_rare(values: MaskValues, labels: Labels) -> list[str]:
    """Return a line for each class of few pixels."""
    most = _RARE * sum(values.counts.values())
    lines = []
    for value, name in labels.named_values.items():
        count = values.counts.get(value, 0)
        if 0 < count < most:
            lines.append(
                f"class {name} has {count_of(count, 'pixel')} in all, e.g. in {values.examples[value]}: "
                "if that is a mistake, fix the mask"
            )
    return lines


def _find_near(values: MaskValues, labels: Labels) -> list[str]:
    """Return a warning if a rare colour is nearly that of a frequent class, as a stray edge of it is.

    Colours of classes with names are meant so; small ones, greys, and colours of one channel may be ids.
    """
    points = labels.to_points(np.array(labels.values))
    ranges = np.ptp(points, axis=0)
    is_id = (
        ranges.max() <= _LARGEST_ID or (ranges > 0).sum() < 2 or not np.ptp(points, axis=1).any()
    )
    if not labels.rgb or labels.names or is_id:
        return []
    counts, found = dict(values.counts), dict[int, int]()
    for (one, point), (other, place) in combinations(zip(labels.values, points, strict=True), 2):
        rare, often = sorted((one, other), key=lambda value: counts.get(value, 0))
        if (
            0 < counts.get(rare, 0) <= _STRAY * counts[often]
            and np.abs(point - place).max() <= _NEAR
        ):
            found.setdefault(rare, often)
    if not found:
        return []
    rest = [counts.get(value, 0) for value in labels.values if value not in found]
    pair = next(iter(found.items()))
    shown = [f"{labels.show(k)} ({count_of(counts[k], 'pixel')})" for k in pair]
    least = max(_RARE * sum(counts.values()), _APART * max(map(counts.__getitem__, found)))
    number = f"--classes {len(rest)} or " if min(rest) >= least else ""
    return [
        f"classes {' and '.join(shown)} have nearly one colour, the first e.g. in {values.examples[pair[0]]}: if they "
        f"are one class, fix the mask, or use --round-masks with {number}a --palette; if not, name them with "
        "--class-names"
    ]


def class_pixels(table: Table, labels: Labels, pairs: Pairs) -> list[int]:
    """Return the pixels of each class in the masks of `pairs`; see `Labels.to_ids`."""
    totals = [0] * labels.num_classes
    for row, _, value, pixels in table.count_values(table.find(pairs)):
        ids = labels.to_ids(np.array([value], np.int32), table.pairs[row].mask)
        for k, has_class in enumerate(labels.planes(ids)):
            if has_class[0]:
                totals[k] += pixels
    return totals
