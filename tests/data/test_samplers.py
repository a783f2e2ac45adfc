"""The images that each rank takes at each step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DistributedSampler

from unet_ddp.data.samplers import ScoringSampler, TrainingSampler
from unet_ddp.errors import UserError


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_world_takes_the_same_global_batches(size: int) -> None:
    """29 images, 12 in a global batch: two steps, of torch's permutation of seed + epoch."""
    for epoch in (0, 1):
        order = torch.randperm(29, generator=torch.Generator().manual_seed(9 + epoch)).tolist()
        for rank in range(size):
            sampler = TrainingSampler(29, 12 // size, rank=rank, size=size, seed=9)
            assert sampler.steps == 2 and len(list(sampler)) == len(sampler) == 24 // size
            sampler.start_at(epoch, 0)
            mine = [(epoch, index) for index in order[:24][rank::size]]
            assert list(sampler) == mine and len(sampler) == 24 // size
            sampler.start_at(epoch, 1)
            assert list(sampler) == mine[12 // size :] and len(sampler) == 12 // size
            sampler.start_at(epoch, 2)
            assert list(sampler) == [] and len(sampler) == 0
            sampler.start_at(epoch, 1, last=epoch + 2)
            several = list(sampler)
            assert several[: 12 // size] == mine[12 // size :] and len(several) == len(sampler)
            sampler.start_at(epoch + 1, 0, last=epoch + 2)
            assert list(sampler) == several[12 // size :] and len(sampler) == 48 // size


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [24, 29, 100, 9001])
def test_the_order_is_that_of_torch(count: int, size: int) -> None:
    """But for the images after the last whole global batch."""
    for rank in range(size):
        sampler = TrainingSampler(count, 3, rank=rank, size=size, seed=5)
        torchs = DistributedSampler(range(count), size, rank, seed=5, drop_last=True)  # type: ignore[arg-type]
        for epoch in (0, 3):
            torchs.set_epoch(epoch)
            sampler.start_at(epoch, 0)
            expected = [(epoch, index) for index in torchs][: sampler.steps * 3]
            assert list(sampler) == expected and len(expected) == len(sampler) > 0


def test_a_global_batch_larger_than_the_set_is_refused() -> None:
    with pytest.raises(UserError, match=r"takes 8 images \(4 for each of 2 .*there are 7 to train"):
        TrainingSampler(7, 4, rank=0, size=2, seed=0)
    assert TrainingSampler(8, 4, rank=0, size=2, seed=0).steps == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [5, 12, 29, 100])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_epochs_of_steps_cut_one_sequence_of_passes(count: int, steps: int, size: int) -> None:
    """12 images in a global batch: an epoch is less than a pass or several, a set smaller than a batch too."""
    samplers = [
        TrainingSampler(count, 12 // size, rank=rank, size=size, seed=9, steps=steps)
        for rank in range(size)
    ]
    stream: list[tuple[int, int]] = []
    for number in range(-(-6 * steps * 12 // count)):
        draw = torch.Generator().manual_seed(9 + number)
        stream += [(number, index) for index in torch.randperm(count, generator=draw).tolist()]
    for number in range(len(stream) // count):  # no image repeats within a pass, none is left out
        assert sorted(stream[number * count :][:count]) == [(number, k) for k in range(count)]
    for epoch, step, last in [(0, 0, 0), (0, steps, 0), (1, steps - 1, 1), (2, 0, 5), (0, 0, 5)]:
        for sampler in samplers:
            sampler.start_at(epoch, step, last=last)
            assert sampler.steps == steps
        first = epoch * steps + step
        dealt = [list(sampler) for sampler in samplers]
        assert [len(each) for each in dealt] == [len(sampler) for sampler in samplers]
        joined = [key for keys in zip(*dealt, strict=True) for key in keys]
        assert joined == stream[12 * first : 12 * (last + 1) * steps]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_scoring_takes_each_image_once(size: int) -> None:
    for count in range(1, 10):
        shares = [ScoringSampler(count, rank=rank, size=size) for rank in range(size)]
        taken = [key for share in shares for key in share]
        assert sorted(taken) == [(0, index) for index in range(count)]
        assert [len(share) for share in shares] == [len(list(share)) for share in shares]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
