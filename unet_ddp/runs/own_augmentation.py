"""An augmentation of the user's own is tried before the first step: a sample must depend on its generator alone."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch

from unet_ddp.config import TrainConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import PreparedData, SegmentationDataset
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.errors import UserError
from unet_ddp.plugins import find
from unet_ddp.training.own_holders import Numbers
from unet_ddp.training.own_state import find_changed, keeping, read_unsaved
from unet_ddp.training.step import seed_all

_SAMPLES = 8
_SAMPLES_BY_CHANCE = 64  # of one that takes the program's own random numbers, perhaps for few
_SECONDS = 10  # after which no more than _SAMPLES are made
_LARGE = 10**6  # calls of a long run


def try_augmentation(config: TrainConfig, data: PreparedData, image_format: ImageFormat) -> None:
    """Make some samples of the first image twice, each time with other global random numbers.

    Raises:
        UserError: two of one generator differ, or an array is kept from sample to sample.
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

    def make(index: int) -> bytes:
        moved = np.roll(image, index, 0), np.roll(mask, index, 0)  # each differs, if it is kept
        return b"".join(each.tobytes() for each in augmentation(*moved, epoch=0, index=index))

    with keeping(own):
        _compare(f"--augmentation {name}", own, make)


def _compare(where: str, own: object, make: Callable[[int], bytes]) -> None:
    """Make samples twice, then the first again, and again as if the numbers that its calls change were large."""
    end = time.monotonic() + _SECONDS
    index, count, first = 0, _SAMPLES, b""
    while index < count:
        made, kept, states = [], [], []
        for seed in (2 * index, 2 * index + 1):
            seed_all(seed)
            states.append(_read_generators())
            made.append(make(index))
            states.append(_read_generators())
            kept.append(_read_arrays(own))
        place = find_changed(*kept)
        if place:
            raise UserError(
                f"{where}: {place} is kept from sample to sample and is in no checkpoint, so a resumed run could differ, "
                "and one of other reading processes; leave it out, or keep plain numbers; see docs/own_parts.md"
            )
        _check_same(where, *made)
        first = first or made[0]
        count = _SAMPLES_BY_CHANCE if _is_unseeded(*states) else count
        index += 1
        if time.monotonic() > end:
            count = min(count, max(index, _SAMPLES))
    numbers = Numbers({"own": own, "module": sys.modules.get(str(own.__module__))})
    _check_same(where, first, make(0))
    now = numbers.read()
    changed = {name: now[name] for name in numbers.state_dict()}
    numbers.load_state_dict({name: number + _LARGE for name, number in changed.items()})
    late = first
    with suppress(UserError):  # as of a counter that is the index of a list
        late = make(0)
    numbers.load_state_dict(changed)
    _check_same(where, first, late)


def _check_same(where: str, one: bytes, other: bytes) -> None:
    if one != other:
        raise UserError(
            f"{where}: gives two results for one generator, so a run could not be repeated; take all random numbers "
            "from the generator, and nothing from earlier samples; see docs/own_parts.md"
        )


def _read_arrays(own: object) -> dict[str, list[object]]:
    """Return the arrays that an augmentation keeps, by their places; a counter or a log of numbers changes no sample."""
    return {place: [*filter(_is_array, values)] for place, values in read_unsaved(own).items()}


def _is_array(value: object) -> bool:
    if isinstance(value, tuple):  # its shape and norm
        return math.prod(value[0]) != 1
    return isinstance(value, bytes)  # as of a PNG


def _is_unseeded(*states: tuple[object, ...]) -> bool:
    """Return whether a call takes random numbers that it has not seeded; states before and after two calls."""
    return any(
        after != after_other and (before != after or before_other != after_other)
        for before, after, before_other, after_other in zip(*states, strict=True)
    )


def _read_generators() -> tuple[object, ...]:
    """Return the state of the random generators that a process has one of."""
    return (
        random.getstate(),
        str(np.random.get_state(legacy=False)),
        torch.get_rng_state().numpy().tobytes(),
    )
