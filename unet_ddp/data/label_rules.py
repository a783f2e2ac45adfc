"""Classes of a data set: from the values in its masks, and from the user's flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, Colour, Flags, pack_colour, unpack_colour
from unet_ddp.errors import UserError, count_of, install_command, join_some
from unet_ddp.plugins import find
from unet_ddp.settings import called

_MOST_GREYS = 64  # more grey values than this are no classes
_CLUSTERS = 0.9  # share of the pixels near black or near white in soft masks of two classes
_FLAT = 0.5  # share of the pixels that the commonest colours have in masks, and not in photographs
_SOFT = 0.05  # of the pixels: soft edges have no more
_ROUND = "use --classes N --round-masks for N classes"
_NEAR = 2  # of 255: a mixture may be rounded by so much

_Points = NDArray[np.float64]  # (N, 3): colours


@dataclass(frozen=True)
class MaskValues:
    """Values in the masks of a data set."""

    counts: Mapping[int, int]  # pixels of every value; colours as 0xRRGGBB
    examples: Mapping[int, str]  # a file that contains the value
    rgb: bool = False
    palette: tuple[Colour, ...] | None = None  # colours of the indices, if all masks have the same
    clash: str | None = None  # how palettes differ, if they do
    lossy: str | None = None  # a mask with lossy compression, if there is one
    has_alpha: bool = False  # any mask has transparency, which is not read
    names: tuple[str, ...] = ()  # see `Pairs.class_names`

    @property
    def values(self) -> list[int]:
        """All values, sorted."""
        return sorted(self.counts)

    @property
    def unread(self) -> str:
        """Addition to a message about masks that have more than values."""
        return ", whose transparency is not read" if self.has_alpha else ""

    def show(self, values: list[int]) -> str:
        """Return the first dozen of `values` as text."""
        return join_some([*map(Labels((), self.rgb).show, values)], 12)

    def brightness(self, value: int) -> int:
        """Return a grey value, or the largest channel of a colour."""
        return max(unpack_colour(value)) if self.rgb else value


def choose_labels(masks: MaskValues, config: DataConfig) -> Labels:
    """Return the classes of the data set; the values must be classes, and agree with the flags."""
    for name in called(config, "label_rules"):
        return find("label_rules", name)(masks, config)
    if config.mask_threshold is not None:
        labels = _threshold(masks, config.mask_threshold, config.ignore_index)
    else:
        refuse_soft(masks)
        labels = infer_labels(masks, classes=config.classes, ignore=config.ignore_index)
    if config.invert:
        if not labels.is_binary:
            raise UserError(f"--invert: for two classes, and there are {labels.num_classes}")
        labels = replace(labels, values=labels.values[::-1])
    return name_labels(labels, masks, config.class_names)


def name_labels(labels: Labels, masks: MaskValues, names: Sequence[str] | None) -> Labels:
    """Return classes with these names, or without; there must be one for each, all different."""
    if names is None:
        return labels
    if len(names) != labels.num_classes or len(set(names)) != len(names):
        raise UserError(
            f"--class-names: {len(names)} names for {labels.num_classes} classes (mask values "
            f"{masks.show(list(labels.values))}); give one for each, all different"
        )
    return replace(labels, names=tuple(names))


# -- from the values alone -----------------------------------------------------------------


def infer_labels(
    masks: MaskValues, *, classes: int | None = None, ignore: int | None = None
) -> Labels:
    """Return the classes of masks with hard edges: each value is a class, in rising order.

    If all values are below `classes`, they are class ids: one that occurs in no mask keeps its id.
    """
    values = masks.values
    refuse_absent(ignore, masks, may_lack=classes is not None)
    kept = [value for value in values if value != ignore]
    _refuse_impossible(kept, masks)
    if classes is None:
        if len(kept) < 2:
            found = masks.show(values)
            if ignore is not None:
                found += f", of which --ignore-index leaves out {masks.show([ignore])}"
            raise UserError(
                f"all masks contain only the value {found}: there is nothing to segment; check the masks{masks.unread}, or use "
                "--classes"
            )
    elif not masks.rgb and max(kept, default=0) < classes:
        if ignore is not None and ignore < classes:
            raise UserError(
                f"--classes {classes} counts the value {ignore} that --ignore-index names: use "
                f"--classes {classes - 1}, or leave it out"
            )
        kept = list(range(classes))
    elif len(kept) != classes:
        rarest = min(values, key=lambda value: masks.counts[value])
        raise UserError(
            f"--classes {classes}: the masks contain {len(kept)} values ({masks.show(values)}); "
            f"{masks.show([rarest])} has {count_of(masks.counts[rarest], 'pixel')}, e.g. in "
            f"{masks.examples[rarest]}; use --round-masks if the others are soft edges or noise, --ignore-index to "
            "leave one of them out, or no --classes for one class per value"
        )
    return Labels(tuple(kept), masks.rgb, ignore, masks.palette)


def refuse_absent(ignore: int | None, masks: MaskValues, *, may_lack: bool = False) -> None:
    """Raise a UserError if the value to ignore is in no mask; some may lack one that is no colour."""
    if ignore is None or ignore in masks.counts:
        return
    typed, advice = masks.show([ignore]), f"the values are {masks.show(masks.values)}"
    if not masks.rgb and ignore > (255 if masks.palette else 65535):  # typed as a colour
        typed, colours = f"#{ignore:06x}", [*map(pack_colour, masks.palette or ())]
        chosen = range(len(colours)) if may_lack else masks.values
        found = [value for value in chosen if colours[value : value + 1] == [ignore]]
        index = f"; type {found[0]}, the index of this colour" if len(found) == 1 else ""
        advice += index or ("" if colours or masks.clash else ", no colours")
    elif masks.rgb and ignore < 256:
        advice += f"; the masks are colour images: for {ignore}, type one of these colours"
    elif may_lack and not masks.rgb:
        return
    raise UserError(f"--ignore-index {typed}: occurs in no mask; {advice}")


def _refuse_impossible(values: list[int], masks: MaskValues) -> None:
    """Raise a UserError for a value that no mask of a prediction could hold, or for too many."""
    largest = 0xFFFFFF if masks.rgb else 65535
    outside = [value for value in values if not 0 <= value <= largest]
    if outside:
        remedies = ["save the masks without a sign" if min(outside) < 0 else "fix the masks"]
        if len(outside) == 1 and len(values) > 2:
            remedies.append(f"leave it out by --ignore-index {outside[0]}")
        if max(values) > 0:
            remedies.append("use --mask-threshold 0")
        raise UserError(
            f"mask value {outside[0]}, e.g. in {masks.examples[outside[0]]}: classes are values from 0 to "
            f"65535; {', or '.join(remedies)}"
        )
    if len(values) > IGNORE_ID:
        raise UserError(
            f"the masks contain {len(values)} different values ({masks.show(masks.values)}); classes "
            "need one value each, at most 255"
        )


def _threshold(masks: MaskValues, threshold: int, ignore: int | None) -> Labels:
    """Return two classes, above the threshold and not; both must occur."""
    levels = [masks.brightness(value) for value in masks.values if value != ignore]
    low = min(levels, default=0)
    high = max(levels, default=0)
    if levels and not low <= threshold < high:
        side = "above" if low > threshold else "at or below"
        raise UserError(
            f"--mask-threshold {threshold}: all mask values ({low} to {high}) are "
            f"{side} it: there is nothing to segment"
        )
    white = 0xFFFFFF if masks.rgb else 255
    return Labels((0, white), masks.rgb, ignore, threshold=threshold)


def instances_flag() -> str:
    """Return the flag for numbered objects as messages recommend it, with what to install first."""
    command = install_command("skimage", "objects")
    return f"--instances (after {command})" if command else "--instances"


# -- soft edges ----------------------------------------------------------------------------


def refuse_soft(masks: MaskValues) -> None:
    """Raise a UserError if the values can't be classes, saying what they look like."""
    values = masks.values
    most = 2 if masks.lossy else _MOST_GREYS
    if len(values) <= most:
        return
    found = masks.lossy or "the masks"
    cause = "lossy compression" if masks.lossy else "soft edges"
    if masks.rgb:
        _refuse_photographs(masks, found)
        advice = f"{_ROUND}, or --mask-threshold 127 for two, dark and bright"
        if not masks.lossy:
            objects = f"or {instances_flag()} if each colour is an object"
            advice = f"{advice}, or name the classes' colours with --palette, {objects}"
        raise UserError(
            f"{found}: {len(values)} different colours, probably from {cause}; {advice}, or save masks as PNG "
            "with one colour per class"
        )
    low = values[0]
    high = values[-1]
    found = f"{found}: {len(values)} different values in the masks ({low} to {high})"
    total = sum(masks.counts.values())
    quarter = (high - low) / 4
    dark = sum(n for v, n in masks.counts.items() if v <= low + quarter)
    bright = sum(n for v, n in masks.counts.items() if v >= high - quarter)
    if dark + bright >= _CLUSTERS * total and bright >= 0.4 * (total - dark):
        raise UserError(
            f"{found}, nearly all close to {low} or {high}, probably from {cause}: use "
            f"--mask-threshold {(low + high) // 2} for two classes, --classes N --round-masks for more, or save "
            "them as PNG without soft edges"
        )
    if masks.lossy:
        raise UserError(
            f"{found}, probably from {cause}; {_ROUND}, or save masks as PNG with one value per class"
        )
    if len(values) > IGNORE_ID:
        raise UserError(
            f"{found}: too many for classes; if they are numbers of objects, use {instances_flag()} "
            "to learn each object, or --mask-threshold 0 for two classes, zero and above"
        )


def _refuse_photographs(masks: MaskValues, found: str) -> None:
    """Raise a UserError if colours are spread as in photographs: soft masks have common ones."""
    common, *others = sorted(masks.counts.values(), reverse=True)
    is_cut_out = common >= _FLAT * (common + sum(others))
    if sum(others[:_MOST_GREYS]) >= _FLAT * sum(others) or (is_cut_out and masks.lossy):
        return
    is_black = not masks.brightness(max(masks.counts, key=masks.counts.__getitem__))
    if not is_cut_out:
        advice = "give the folder of masks as --masks, and that of images as --images"
    elif is_black:
        advice = "use --mask-threshold 0 for one class of all that is not black"
    else:
        advice = "save masks as PNG with one colour per class"
    what = "photographs of objects cut out" if is_cut_out else "photographs"
    raise UserError(
        f"{found}: {len(masks.counts)} different colours, none common; if they are {what}, {advice}; if each "
        f"colour is an object, {instances_flag()}; if they are masks with soft edges, {_ROUND}"
    )


def warn_soft_edges(masks: MaskValues, labels: Labels) -> list[str]:
    """Return a warning if classes of few pixels may be the soft edges of the others.

    Their colours lie between two others: three or more do if they are spread widely, as between black
    and white, eight between each two if all are close, as class ids are.
    """
    is_named = labels.names and (labels.rgb or labels.palette)
    are_classes = not (labels.may_overlap or labels.objects)  # rather than bits, or numbers
    if labels.threshold is not None or labels.rounded or not are_classes or is_named:
        return []
    values = sorted(labels.values, key=lambda value: masks.counts.get(value, 0))
    counts = np.array([masks.counts.get(value, 0) for value in values])
    num_soft = int((counts.cumsum() <= _SOFT * counts.sum()).sum())
    hard = values[num_soft:]
    colours = labels.to_points(np.array(values))
    is_close = np.ptp(colours, axis=0).max(initial=0) < 4 * len(values)
    least = 8 * (len(hard) - 1) if is_close else max(3, len(hard))
    between = _lie_between(colours[:num_soft], colours[num_soft:])
    soft_counts = counts[:num_soft]
    if num_soft < least or soft_counts @ between < _CLUSTERS * soft_counts.sum():
        return []
    ends = "others"
    advice = f"use --classes {len(hard)} --round-masks"
    if len(hard) == 2:
        ends = f"{labels.show(min(hard))} and {labels.show(max(hard))}"
        dark, bright = sorted(map(masks.brightness, hard))
        if dark < bright and not labels.palette:
            advice = f"use --mask-threshold {(dark + bright) // 2}"
    if not labels.rgb and not labels.palette:
        advice += f"; if they are numbers of objects, {instances_flag()} or --mask-threshold 0"
    return [
        f"{num_soft} of the {len(values)} classes have few pixels and lie between {ends}: if they are "
        f"soft edges, {advice}"
    ]


def _lie_between(some: _Points, others: _Points) -> Flags:
    """Return which of `some` (N, 3) are mixtures of two of `others` (M, 3)."""
    found = np.zeros(len(some), bool)
    for one, other in combinations(others, 2):
        way = other - one
        share = (some - one) @ way / (way @ way or 1.0)
        mixtures = one + share[:, None] * way
        distance = np.abs(some - mixtures).max(axis=1, initial=0)
        found |= (share > 0) & (share < 1) & (distance <= _NEAR)
    return found
