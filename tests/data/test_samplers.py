"""The images that each rank takes at each step."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from unet_ddp.data.samplers import AheadSampler, ClassDraw, ScoringSampler, TrainingSampler
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
def test_scoring_takes_each_image_once(size: int) -> None:
    for count in range(1, 10):
        shares = [ScoringSampler(count, rank=rank, size=size) for rank in range(size)]
        taken = [key for share in shares for key in share]
        assert sorted(taken) == [(0, index) for index in range(count)]
        assert [len(share) for share in shares] == [len(list(share)) for share in shares]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_batch_comes_with_the_next_of_its_reading_process(workers: int) -> None:
    own = ScoringSampler(11, rank=0, size=1)
    batches = AheadSampler(own, batch_size=2, workers=workers)
    plain = [[(0, k) for k in range(n, min(n + 2, 11))] for n in range(0, 11, 2)]
    found = list(batches)
    assert [batch for batch, _ in found] == plain and len(batches) == len(plain)
    distance = max(1, workers)
    assert [ahead for _, ahead in found] == [*plain[distance:], *[[]] * distance]


def make_draw(has: np.ndarray, share: float = 1.0, seed: int = 0) -> ClassDraw:
    """The draw of images (classes, images) that have each class or not."""
    return ClassDraw(np.packbits(has, axis=1), share=share, seed=seed)


def test_each_class_that_occurs_is_drawn_as_often_as_any_other() -> None:
    """In all of 3000 images, in 40 of them or in one; a fourth in none. Each of the 40 as often."""
    has = np.zeros((4, 3000), bool)
    few = np.random.default_rng(1).choice(3000, 40, replace=False)
    has[0], has[1, few], has[3, 2999] = True, True, True
    draw = make_draw(has, share=0.6)
    found = [draw(2, index) for index in range(3000)]
    drawn = [(image, class_id) for image, class_id in found if class_id is not None]
    assert abs(len(drawn) - 1800) < 4 * 27  # deviations of a binomial
    assert all(has[class_id, image] for image, class_id in drawn)
    assert all(image == k for k, (image, class_id) in enumerate(found) if class_id is None)
    counts = np.bincount([class_id for _, class_id in drawn], minlength=4)
    assert counts[2] == 0 and np.abs(counts[[0, 1, 3]] - 600).max() < 4 * 20
    images = np.bincount([image for image, class_id in drawn if class_id == 1], minlength=3000)
    assert images.sum() == images[few].sum() and images[few].min() >= 3 and images[few].max() <= 35
    assert len({image for image, class_id in drawn if class_id == 0}) > 500  # of 600 draws


def test_a_draw_is_a_function_of_seed_epoch_and_index(rng: np.random.Generator) -> None:
    has = rng.random((3, 700)) < 0.3
    keys = [(epoch, index) for epoch in (0, 1, 5) for index in range(200)]
    draw = make_draw(has, share=0.5, seed=7)
    expected = {key: draw(*key) for key in keys}
    other = pickle.loads(pickle.dumps(draw))
    assert {key: other(*key) for key in reversed(keys)} == expected
    for changed in (make_draw(has, share=0.5, seed=8), lambda epoch, index: draw(epoch + 1, index)):
        same = [changed(*key) == expected[key] for key in keys]
        assert sum(same) < 0.4 * len(same)  # both are the index's own image


def test_every_image_of_a_class_can_be_drawn(rng: np.random.Generator) -> None:
    """Also at the ends of the parts that are counted together."""
    has = np.zeros((1, 1600), bool)
    ends = [0, 7, 8, 511, 512, 1023, 1024, 1535, 1536, 1599]
    has[0, ends] = True
    draw = make_draw(has)
    assert {draw(0, index)[0] for index in range(200)} == set(ends)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (1.0, 100)])
def test_none_or_all_by_class(share: float, count: int) -> None:
    draw = make_draw(np.ones((2, 100), bool), share)
    assert sum(draw(0, index)[1] is not None for index in range(100)) == count


def test_no_class_in_any_image_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^--balance 0.5: the training masks have no pixel of any"):
        make_draw(np.zeros((3, 9), bool), 0.5)
    assert make_draw(np.eye(2, 9, dtype=bool), 0.5).describe() == (
        "balance: 50% of the samples drawn by class, 25.0% for each"
    )
