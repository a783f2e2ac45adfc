"""Rules that masks follow in which each object has a number."""

from __future__ import annotations

import numpy as np

from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.objects.borders import BODY, CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels


def infer_object_labels(masks: MaskValues, config: DataConfig) -> ObjectLabels:
    """Return the labels of a data set of these mask values.

    Raises:
        UserError: the values are not numbers of objects, or a library is not installed.
    """
    if masks.lossy is not None:
        raise UserError(
            f"{masks.lossy}: --instances: lossy compression changes the objects' numbers; save the "
            "masks as 16-bit PNG or TIFF"
        )
    names, ignore = config.class_names, config.ignore_index
    if names is None:
        names = (CLASS_NAMES[BODY],)
    labels = ObjectLabels.of(names, ignore)
    labels.check_numbers(np.array(masks.values, np.int32), lambda value: masks.examples[value])
    if len({*masks.values} - {0, ignore}) < 2:
        raise UserError(
            f"--instances: all masks contain only {masks.show(masks.values)}: no object has a number "
            "of its own; number the objects (skimage.measure.label does), or leave --instances out"
        )
    check_installed("skimage", "objects", "--instances")
    return labels
