"""Classes of a data set: from the values in its masks, and from the user's flags."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.mask_values import MaskValues, refuse_soft
from unet_ddp.data.masks import IGNORE_ID, unpack_colour
from unet_ddp.errors import UserError
from unet_ddp.plugins import find
from unet_ddp.settings import called


def choose_labels(masks: MaskValues, config: DataConfig) -> Labels:
    """Return the classes of the data set; the values must be classes, and agree with the flags."""
    for name in called(config, "label_rules"):
        return cast(Labels, find("label_rules", name)(masks, config))
    if config.binary or config.mask_threshold is not None:
        labels = _threshold(masks, config.mask_threshold or 0, config.ignore_index)
    elif config.palette is not None:
        labels = find("label_rules", "palette")(masks, config)
    else:
        refuse_soft(masks)
        labels = infer_labels(masks, classes=config.classes, ignore=config.ignore_index)
    if config.invert:
        if labels.num_classes != 2:
            raise UserError(f"--invert: for two classes, and there are {labels.num_classes}")
        labels = replace(labels, values=labels.values[::-1])
    names = config.class_names
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
    if ignore is not None and ignore not in values and (masks.rgb or classes is None):
        raise UserError(
            f"--ignore-index {masks.show([ignore])}: occurs in no mask; the values are "
            f"{masks.show(values)}"
        )
    kept = [value for value in values if value != ignore]
    _refuse_impossible(kept, masks)
    if classes is None and len(kept) < 2:
        raise UserError(
            f"all masks contain only the value {masks.show(values)}: there is nothing to segment; "
            "check the masks, or use --classes"
        )
    if classes is not None and not masks.rgb and max(kept, default=0) < classes:
        if ignore is not None and ignore < classes:
            raise UserError(
                f"--classes {classes} counts the value {ignore} that --ignore-index names: use "
                f"--classes {classes - 1}, or leave it out"
            )
        kept = list(range(classes))
    if len(kept) != (classes or len(kept)):
        rarest = min(values, key=lambda value: masks.counts[value])
        raise UserError(
            f"--classes {classes}: the masks contain {len(kept)} values ({masks.show(values)}); "
            f"{masks.show([rarest])} has {masks.counts[rarest]} pixel(s), e.g. in "
            f"{masks.examples[rarest]}; fix the masks, leave --classes out for one class per value, "
            "or name one of them with --ignore-index"
        )
    return Labels(tuple(kept), masks.rgb, ignore, masks.palette)


def _refuse_impossible(values: list[int], masks: MaskValues) -> None:
    """Raise a UserError for a value that no mask of a prediction could hold, or for too many."""
    outside = [value for value in values if not 0 <= value <= (0xFFFFFF if masks.rgb else 65535)]
    if outside:
        raise UserError(
            f"mask value {outside[0]}, e.g. in {masks.examples[outside[0]]}: classes are values from 0 to "
            "65535; fix the masks, name the value with --ignore-index, or use --binary"
        )
    if len(values) > IGNORE_ID:
        raise UserError(
            f"the masks contain {len(values)} different values ({masks.show(masks.values)}); classes "
            "need one value each, at most 255"
        )


def _threshold(masks: MaskValues, threshold: int, ignore: int | None) -> Labels:
    """Return two classes, above the threshold and not; both must occur."""
    values = [value for value in masks.values if value != ignore]
    bright = [max(unpack_colour(value)) if masks.rgb else value for value in values]
    if bright and (max(bright) <= threshold or min(bright) > threshold):
        side = "above" if min(bright) > threshold else "at or below"
        raise UserError(
            f"--mask-threshold {threshold}: all mask values ({min(bright)} to {max(bright)}) are "
            f"{side} it: there is nothing to segment"
        )
    white = 0xFFFFFF if masks.rgb else 255
    return Labels((0, white), masks.rgb, ignore, threshold=threshold)
