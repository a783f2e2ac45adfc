"""An augmentation of the user's own is tried before the first step: a sample must depend on its generator alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from unet_ddp.config import TrainConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import PreparedData, SegmentationDataset
from unet_ddp.data.masks import Ids
from unet_ddp.data.readers.base import ImageFormat, Pixels
from unet_ddp.errors import UserError
from unet_ddp.plugins import find
from unet_ddp.training.own_state import find_changed, keeping, read_unsaved
from unet_ddp.training.step import seed_all

_SAMPLES = 8
_SAMPLES_BY_CHANCE = 64  # of one that takes the program's own random numbers, perhaps for few


def try_augmentation(config: TrainConfig, data: PreparedData, image_format: ImageFormat) -> None:
    """Make some samples of the first image twice, each time with other global random numbers.

    Raises:
        UserError: two of one generator differ, or something is kept from sample to sample.
    """
    name, options = config.data.augmentation, config.data
    dataset = SegmentationDataset(
        data.split.training, data.labels, image_format, scale=options.scale, resize_masks=options.resize_masks, draw=data.draw
    )  # fmt: skip
    sample = dataset[0, 0]
    if isinstance(sample, UserError):
        return  # the run says so, and of which file
    image, mask = sample.image.numpy(), sample.mask.numpy()
    augmentation = Augmentation(
        image_format, name, data.crop_size, seed=config.optimization.seed, cut=data.cut, num_classes=data.labels.num_ids
    )  # fmt: skip
    own = find("augmentations", name)
    with keeping(own):
        _compare(f"--augmentation {name}", own, partial(augmentation, image, mask, epoch=0))


def _compare(where: str, own: object, make: Callable[..., tuple[Pixels, Ids]]) -> None:
    """Make samples twice; the last of them is the first again, after the others."""
    index, count, first = 0, _SAMPLES, b""
    while index <= count:
        made, kept = [], []
        for seed in (2 * index, 2 * index + 1):
            seed_all(seed)
            before = _read_generators()
            made.append(b"".join(each.tobytes() for each in make(index=index % count)))
            kept.append(read_unsaved(own))
            count = _SAMPLES_BY_CHANCE if before != _read_generators() else count
        first = first or made[0]
        place = find_changed(*kept)
        if place:
            raise UserError(
                f"{where}: {place} is kept from sample to sample and is in no checkpoint, so a resumed run would differ, "
                "and one of other reading processes; leave it out; see docs/own_parts.md"
            )
        if made[0] != made[1] or (index == count and made[0] != first):
            raise UserError(
                f"{where}: gives two results for one generator, so a run could not be repeated; take all random numbers "
                "from the generator, and keep no samples; see docs/own_parts.md"
            )
        index += 1


def _read_generators() -> tuple[object, ...]:
    """Return the state of the random generators that a process has one of."""
    numpys = map(str, np.random.get_state(legacy=False).items())
    return random.getstate(), *numpys, torch.get_rng_state().numpy().tobytes()
