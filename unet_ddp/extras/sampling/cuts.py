"""Parts of images at random scales, around a class: ``--scale-jitter``, and crops of ``--balance``."""

from __future__ import annotations

from functools import partial

import numpy as np

from unet_ddp.config import DataConfig
from unet_ddp.data.augmentation import Cut
from unet_ddp.data.masks import Ids, Size
from unet_ddp.data.readers.base import Pixels
from unet_ddp.data.readers.resize import resize_area, resize_nearest


def plan_cuts(config: DataConfig) -> Cut:
    """Return the function that cuts samples as the settings say."""
    return partial(cut_sample, config.scale_jitter)


def cut_sample(
    scales: tuple[float, float] | None,
    image: Pixels,
    mask: Ids,
    crop_size: Size,
    drawn: int | None,
    generator: np.random.Generator,
) -> tuple[Pixels, Ids]:
    """Return a random part of a sample, resized to a crop; smaller if the image ends before.

    Only this part is resized, not the image. The factor is log-uniform from `scales`, 1 without: as many
    objects are halved as doubled. A random pixel of the class `drawn`, if the mask has one, is in it. The
    whole sample is returned if neither is given.
    """
    if scales is None and drawn is None:
        return image, mask
    scale = np.exp(generator.uniform(*np.log(scales or (1, 1))))
    wanted = np.rint(np.array(crop_size) / scale).astype(int).clip(min=1)
    part = np.minimum(wanted, mask.shape)
    first, last = 0 * part, mask.shape - part  # corners of the part
    found = np.flatnonzero(mask == drawn) if drawn is not None else ()
    if len(found):
        pixel = np.unravel_index(generator.choice(found), mask.shape)
        first = np.maximum(first, pixel - part + 1)
        last = np.minimum(last, pixel)
    top, left = generator.integers(first, last, endpoint=True).tolist()
    rows, columns = part.tolist()
    window = slice(top, top + rows), slice(left, left + columns)
    height, width = np.rint(crop_size * part / wanted).astype(int).clip(min=1).tolist()
    size = height, width
    return resize_area(image[window], size), resize_nearest(mask[window], size)
