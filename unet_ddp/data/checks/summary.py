"""What the user should know of a data set: lines that say what it is, and what looks wrong."""

from __future__ import annotations

import numpy as np

from unet_ddp.data.checks.rules import alike_across, constant_images
from unet_ddp.data.checks.scan import Findings
from unet_ddp.data.formats.header import ImageFormat, bits_of
from unet_ddp.data.formats.resize import scaled_size
from unet_ddp.data.labels import IGNORE_ID, Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.data.splits import Split

_MOST = 16  # classes that a line names
_SLIP = 5e-4  # share of the pixels below which a class may be none


def describe_images(found: Findings, form: ImageFormat, *, count: int, scale: float) -> str:
    """How many images there are, how large, and of which kind."""
    sizes = sorted(set(found.sizes))
    height, width = sizes[-1]
    many = f"{len(sizes)} sizes up to {width}x{height}" if len(sizes) > 1 else f"{width}x{height}"
    scaled = scaled_size(height, width, scale)
    return (
        f"data: {count} pairs, {many} pixels ({scaled[1]}x{scaled[0]} at scale {scale:g}), "
        f"{kind_of(form)}"
    )


def kind_of(form: ImageFormat) -> str:
    """Channels and type of images in a few words."""
    colours = {1: "grey", 3: "colour"}.get(form.channels, f"{form.channels} bands")
    return f"{colours}, {bits_of(form.dtype)}"


def describe_classes(labels: Labels) -> str:
    """The classes and their mask values."""
    shown = [
        f"{name} ({labels.show(value)})" if labels.names else name
        for name, value in zip(labels.class_names[:_MOST], labels.values, strict=False)
    ]
    more = ", …" if labels.num_classes > _MOST else ""
    ignored = f"; {labels.show(labels.ignore)} is ignored" if labels.ignore is not None else ""
    how = f", the one above {labels.threshold}" if labels.threshold is not None else ""
    return f"classes: {labels.num_classes}, the mask values {', '.join(shown)}{more}{how}{ignored}"


def describe_split(split: Split) -> str:
    """How the images were divided."""
    return (
        f"split: {split.how}; {len(split.training)} images to train on, "
        f"{len(split.validation)} to validate"
    )


def note_alpha(found: Findings, form: ImageFormat) -> list[str]:
    """A line where transparency is dropped."""
    has_alpha = any(image.has_alpha for image in found.images)
    if not has_alpha or form.channels != max(image.channels for image in found.images):
        return []
    keep = "; --channels 4 keeps it" if form.channels == 3 else ""
    return [f"alpha: the images' transparency is dropped{keep}"]


def copies_across(found: Findings, split: Split) -> list[tuple[Pair, Pair]]:
    """Validation pairs whose images are copies of training images, or nearly, with those."""
    images = {pair.name: image for pair, image in zip(found.pairs, found.images, strict=True)}
    training, validation = (
        [pair for pair in side if pair.name in images]
        for side in (split.training, split.validation)
    )
    if not training or not validation:
        return []
    alike = alike_across([images[p.name] for p in training], [images[p.name] for p in validation])
    return [(validation[one], training[other]) for one, other in alike]


def suspect_images(found: Findings, copies: list[tuple[Pair, Pair]]) -> list[str]:
    """Warnings about images that show nothing, or are on both sides of the split."""
    lines = []
    constant = constant_images(found)
    if constant:
        lines.append(
            f"{len(constant)} image(s) of one colour, as {constant[0].image}: nothing can be seen "
            "in them"
        )
    if copies:
        one, other = copies[0]
        lines.append(
            f"{len(copies)} validation image(s) are copies of training images, or nearly, as "
            f"{one.image} of {other.image}: scores will be too good; remove them, or keep them "
            "together by --group-pattern"
        )
    return lines


def suspect_classes(found: Findings, labels: Labels, split: Split) -> list[str]:
    """Warnings about classes that can't be learnt or scored."""
    training = pixels_of_classes(found, labels, split.training)
    validation = pixels_of_classes(found, labels, split.validation)
    names, lines = labels.class_names, []
    only = [names[k] for k in range(labels.num_classes) if validation[k] and not training[k]]
    never = [names[k] for k in range(labels.num_classes) if split.validation and not validation[k]]
    if only:
        lines.append(
            f"class {_listed(only)} occurs in validation only: nothing of it can be learnt; "
            "choose another split by --seed or --validation"
        )
    if never:
        lines.append(f"class {_listed(never)} does not occur in validation: it gets no score")
    lines += _slips(found, labels)
    if labels.num_classes == 2 and training[1] > 0.85 * sum(training):
        lines.append(
            f"{training[1] / sum(training):.0%} of the pixels are class {names[1]}: if that is the "
            "background, give --invert"
        )
    return lines


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) + (", …" if len(names) > _MOST else "")


def _slips(found: Findings, labels: Labels) -> list[str]:
    """Warnings about values of so few pixels that they may be slips of the pen."""
    values = found.mask_values()
    total = sum(values.counts.values())
    return [
        f"class {name} has {values.counts[value]} pixel(s) in all, as in {values.where[value]}: if it "
        "is a slip, mend the mask"
        for name, value in zip(labels.class_names, labels.values, strict=True)
        if labels.threshold is None and 0 < values.counts[value] < _SLIP * total
    ][:3]


def pixels_of_classes(found: Findings, labels: Labels, pairs: list[Pair]) -> list[int]:
    """Pixels of each class in the masks of `pairs`.

    Raises:
        UserError: a mask holds a value that is none of the classes.
    """
    wanted = {pair.name for pair in pairs}
    totals = [0] * labels.num_classes
    ids: dict[int, int] = {}
    for pair, mask in zip(found.pairs, found.masks, strict=True):
        if pair.name not in wanted:
            continue
        new = [value for value in mask.values if value not in ids]
        if new:
            classes = labels.to_ids(np.array([new], np.int32), pair.mask)[0]
            ids.update(zip(new, classes.tolist(), strict=True))
        for value, count in zip(mask.values, mask.counts, strict=True):
            if ids[value] != IGNORE_ID:
                totals[ids[value]] += count
    return totals
