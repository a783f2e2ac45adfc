"""Samples are a function of (seed, epoch, index), and of nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import make_set
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.labels import IGNORE_ID, Labels
from unet_ddp.data.loaders import ScoringSampler, TrainingSampler, make_loader
from unet_ddp.data.pairs import find_pairs
from unet_ddp.errors import UserError


def dataset(folder: Path, *, seed: int = 3, preset: str = "photo") -> SegmentationDataset:
    if not (folder / "imgs").exists():
        make_set(folder, 8, size=(20, 26))
    pairs = find_pairs(folder / "imgs", folder / "masks")
    augmentation = Augmentation(preset, None, colour=True, seed=seed)
    return SegmentationDataset(
        pairs, Labels((0, 255)), ImageFormat(3), scale=1.0, augmentation=augmentation
    )


def stream(data: SegmentationDataset, workers: int, epochs: int = 2) -> list[bytes]:
    """All samples of an augmented run, in the order of their keys, as bytes."""
    sampler = TrainingSampler(len(data), 2, rank=0, size=1, seed=1)
    loader = make_loader(data, sampler, batch_size=2, workers=workers, pin=False)
    found = {}
    for epoch in range(epochs):
        sampler.start_at(epoch, 0)
        for batch in loader:
            for image, mask, pair in zip(*batch, strict=True):
                found[epoch, int(pair)] = image.numpy().tobytes() + mask.numpy().tobytes()
    return [found[key] for key in sorted(found)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
def test_streams_differ_by_epoch_and_index_and_not_by_workers(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    alone = stream(data, 0)
    assert len(alone) == 16
    assert len(set(alone)) >= 15  # an unchanged image may come twice, rarely
    for workers in (1, 3):
        assert stream(data, workers) == alone
    assert stream(dataset(tmp_path, seed=4), 0) != alone


@pytest.mark.parametrize("preset", ["photo", "overhead"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_hundreds_of_bands_are_changed_alike(preset: str, dtype: str) -> None:
    """OpenCV takes 128. Each band, its mask too, is what a single one becomes."""
    band = np.random.default_rng(0).integers(0, 200, (20, 26, 1)).astype(dtype)
    mask = (band[..., 0] > 99).astype(np.uint8)
    crop = (16, 16)
    many, one = (
        Augmentation.for_images(ImageFormat(channels, dtype), preset, crop, seed=5)
        for channels in (300, 1)
    )
    assert many is not None and one is not None
    for index in range(20):
        image, ids = many(np.repeat(band, 300, axis=2), mask, epoch=1, index=index)
        expected, expected_ids = one(band, mask, epoch=1, index=index)
        assert image.shape == (16, 16, 300) and image.dtype == band.dtype
        assert (image == expected).all()
        assert (ids == expected_ids).all()


def test_flips_are_independent() -> None:
    """With albumentations' set_random_seed, both flips fire together every time."""
    augmentation = Augmentation("overhead", None, colour=False, seed=0)
    augmentation.compose = type(augmentation.compose)(augmentation.compose.transforms[:2])
    image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
    mask = np.zeros((4, 4), np.uint8)
    flips = []
    for index in range(400):
        first = int(augmentation(image, mask, epoch=0, index=index)[0][0, 0, 0])
        flips.append((first in (3, 15), first in (12, 15)))  # horizontally, vertically
    table = np.array(flips, float)
    assert abs(np.corrcoef(table.T)[0, 1]) < 0.2
    assert (abs(table.mean(axis=0) - 0.5) < 0.12).all()


@pytest.mark.parametrize("preset", ["none", "photo", "overhead"])
@pytest.mark.parametrize("size", [(16, 40), (64, 64)])
def test_crops_have_one_size_and_mask_follows_image(preset: str, size: tuple[int, int]) -> None:
    augmentation = Augmentation(preset, (32, 32), colour=True, seed=0)
    image = np.zeros((*size, 3), np.uint8)
    image[4:12, 6:30] = 200
    mask = (image[..., 0] > 0).astype(np.uint8)
    for index in range(30):
        changed, follows = augmentation(image, mask, epoch=0, index=index)
        assert changed.shape == (32, 32, 3) and follows.shape == (32, 32)
        assert set(np.unique(follows)) <= {0, 1, IGNORE_ID}
        valid = follows != IGNORE_ID
        agreeing = ((changed.max(axis=2) > 100) == (follows == 1))[valid].mean()
        assert agreeing > 0.93  # edges blend


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_world_sees_each_sample_once_at_the_same_step(size: int) -> None:
    """29 images, global batch 12: two steps, 24 different images, whatever the world."""
    expected = [
        set(list(TrainingSampler(29, 12, rank=0, size=1, seed=9))[12 * k : 12 * k + 12])
        for k in range(2)
    ]
    samplers = [TrainingSampler(29, 12 // size, rank=r, size=size, seed=9) for r in range(size)]
    shares = [list(sampler) for sampler in samplers]
    share = 12 // size
    steps = [
        {key for keys in shares for key in keys[share * k : share * (k + 1)]} for k in range(2)
    ]
    assert steps == expected
    assert len(steps[0] | steps[1]) == 24
    for sampler, keys in zip(samplers, shares, strict=True):
        sampler.start_at(0, 1)
        assert list(sampler) == keys[share:]
        assert len(sampler) == share
        sampler.start_at(1, 0)
        assert [index for _, index in sampler] != [index for _, index in keys]


def test_scoring_takes_each_image_once() -> None:
    for count in range(1, 10):
        for size in (1, 2, 3, 4):
            shares = [list(ScoringSampler(count, rank=r, size=size)) for r in range(size)]
            indices = sorted(index for share in shares for _, index in share)
            assert indices == list(range(count))


def test_what_is_fetched_together_is_given_one_by_one(tmp_path: Path) -> None:
    """The same batches of one, however many a message holds; one that can't be read is left out."""
    make_set(tmp_path, 8, size=(20, 26))
    (tmp_path / "imgs" / "broken.png").write_bytes(b"no picture")
    Image.new("L", (26, 20)).save(tmp_path / "masks" / "broken.png")
    pairs = find_pairs(tmp_path / "imgs", tmp_path / "masks")
    data = SegmentationDataset(pairs, Labels((0, 255)), ImageFormat(3), scale=1.0, bad="left out")
    sampler = ScoringSampler(len(data), rank=0, size=1)
    told: list[UserError] = []
    found = []
    for count in (1, 3, 9):
        loader = make_loader(
            data, sampler, batch_size=count, workers=0, pin=False, note=told.append, singly=True
        )
        found.append(list(loader))
    assert [len(samples) for samples in found] == [8, 8, 8]
    assert len(told) == 3
    for samples in zip(*found, strict=True):
        for part in zip(*samples, strict=True):
            assert part[0].shape[0] == 1
            assert all(torch.equal(part[0], other) for other in part[1:])


def test_a_batch_larger_than_the_set_is_refused() -> None:
    with pytest.raises(UserError, match="one step takes 8 images"):
        TrainingSampler(7, 4, rank=0, size=2, seed=0)
