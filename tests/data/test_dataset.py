"""From a pair of files to a sample."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from unet_ddp.data.dataset import Sample, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud.reading import FetchedAhead
from unet_ddp.extras.sampling.balance import ClassDraw

GREY = ImageFormat(1)
PIXELS = np.arange(8, dtype=np.uint8).reshape(2, 4) * 10
MASK = np.array([[0, 255, 0, 7], [255, 255, 0, 0]], np.uint8)
IDS = [[0, 1, 0, IGNORE_ID], [1, 1, 0, 0]]


def save(folder: Path, name: str, pixels: np.ndarray, mask: np.ndarray) -> Pair:
    paths = folder / f"{name}.png", folder / f"{name}_mask.png"
    for path, array in zip(paths, (pixels, mask), strict=True):
        Image.fromarray(array).save(path)
    return Pair(name, *paths)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return save(tmp_path, "a", PIXELS, MASK)


def dataset(
    *pairs: Pair, image_format: ImageFormat = GREY, **options: object
) -> SegmentationDataset:
    labels = Labels((0, 255), ignore=7)
    return SegmentationDataset(
        Pairs(pairs),
        labels,
        image_format,
        **{"scale": 1.0, **options},  # type: ignore[arg-type]
    )


def read(data: SegmentationDataset, epoch: int = 0, index: int = 0) -> Sample:
    sample = data[epoch, index]
    assert isinstance(sample, Sample), sample
    return sample


def test_a_sample_is_the_file_s_pixels_and_class_ids(pair: Pair) -> None:
    other = save(pair.image.parent, "b", PIXELS + 1, MASK)
    data = dataset(pair, other)
    assert len(data) == 2
    image, mask, index = read(data, index=1)
    assert image.dtype == mask.dtype == torch.uint8 and index.dtype == torch.int64
    assert image.shape == (2, 4, 1) and (image[..., 0].numpy() == PIXELS + 1).all()
    assert mask.tolist() == IDS
    assert int(index) == 1


def test_a_pair_whose_files_can_not_be_named_is_an_error_as_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a pack may be cut while a run goes on."""
    data = dataset(pair)
    monkeypatch.setattr(data.pairs, "to_read", mock.Mock(side_effect=UserError("pack.index: cut")))
    assert str(data[0, 0]) == "pack.index: cut"


def test_image_and_mask_are_reduced_alike(pair: Pair) -> None:
    image, mask, _ = read(dataset(pair, scale=0.5))
    assert image[..., 0].tolist() == [[25, 45]]  # means of 0 10 40 50 and of 20 30 60 70
    assert mask.tolist() == [[1, 0]]  # what lies at the centre


def test_augmentation_gets_the_key_and_its_views_become_tensors(pair: Pair) -> None:
    calls = []

    def flip(image: np.ndarray, mask: np.ndarray, **key: int) -> tuple[np.ndarray, np.ndarray]:
        calls.append(key)
        return image[:, ::-1], mask[:, ::-1]

    image, mask, _ = read(dataset(pair, augmentation=flip), epoch=5)
    assert calls == [{"epoch": 5, "index": 0, "drawn": None}]
    assert (image[..., 0].numpy() == PIXELS[:, ::-1]).all()
    assert mask.tolist() == [row[::-1] for row in IDS]


def test_a_draw_by_class_takes_the_place_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crop's class goes to the augmentation, and the files are those that storage fetches ahead."""
    pairs = [save(tmp_path, name, PIXELS + k, MASK) for k, name in enumerate("abc")]
    draw = ClassDraw(np.array([[0b00100000], [0b01000000]], np.uint8), share=0.6, seed=1)
    calls, held = [], []

    def unchanged(image: np.ndarray, mask: np.ndarray, **how: int | None) -> tuple[np.ndarray, ...]:
        calls.append((how["epoch"], how["index"], how["drawn"]))
        return image, mask

    data = dataset(*pairs, augmentation=unchanged, draw=draw)
    monkeypatch.setattr(data.pairs, "fetch_ahead", held.extend)
    keys = [(epoch, index) for epoch in range(10) for index in range(3)]
    FetchedAhead(data).__getitems__((keys, []))
    calls.clear()
    for epoch, index in keys:
        sample = read(data, epoch, index)
        own, drawn = draw(epoch, index)
        assert sample.pair == own and (sample.image[..., 0].numpy() == PIXELS + own).all()
        assert calls.pop() == (epoch, index, drawn)
        assert own == {None: index, 0: 2, 1: 1}[drawn]
        assert held.pop(0) == pairs[own].image and held.pop(0) == pairs[own].mask
    assert held == []


def test_pixels_without_data_are_filled_and_ignored(pair: Pair) -> None:
    image, mask, _ = read(dataset(pair, image_format=ImageFormat(1, nodata=20.0, fill=(99.0,))))
    assert image[..., 0].tolist() == [[0, 10, 99, 30], [40, 50, 60, 70]]
    assert mask.tolist() == [[0, 1, IGNORE_ID, IGNORE_ID], [1, 1, 0, 0]]


def test_a_mask_of_another_size_is_named_or_resized(tmp_path: Path) -> None:
    pair = save(tmp_path, "a", PIXELS, np.kron(MASK, np.ones((3, 2), np.uint8)))
    error = dataset(pair)[0, 0]
    assert isinstance(error, UserError)
    assert str(error) == f"{pair.mask} is 8x6, its image 4x2; resize one"
    assert read(dataset(pair, resize_masks=True)).mask.tolist() == IDS


def test_a_rotated_mask_is_not_resized(tmp_path: Path) -> None:
    """At a scale, sides that are exchanged by rounding are those of a mask of another size."""
    rotated = save(tmp_path, "a", PIXELS, MASK.T.copy())
    error = dataset(rotated, resize_masks=True)[0, 0]
    assert isinstance(error, UserError)
    assert str(error).endswith("is 2x4, its image 4x2; one of them is rotated by 90 degrees")
    size = np.zeros((8, 19), np.uint8)
    other = save(tmp_path, "b", size, np.zeros((20, 9), np.uint8))
    scaled = dataset(other, resize_masks=True, scale=0.25)  # 5x2, and 2x5
    assert read(scaled).mask.shape == (2, 5)
    square = save(tmp_path, "c", size[:, :7], np.zeros((7, 8), np.uint8))
    assert read(dataset(square, resize_masks=True)).mask.shape == (8, 7)


def test_an_image_of_another_size_than_the_batch_is_named(pair: Pair) -> None:
    assert read(dataset(pair, size=(2, 4))).image.shape == (2, 4, 1)
    for size in ((2, 5), (3, 4)):
        error = dataset(pair, size=size)[0, 0]
        assert isinstance(error, UserError)
        expected = f"{pair.image}: 4x2 pixels after scaling, the others {size[1]}x{size[0]}; use"
        assert str(error).startswith(expected)


@pytest.mark.parametrize("part", ["image", "mask"])
def test_an_unreadable_file_is_an_error_in_the_place_of_its_sample(pair: Pair, part: str) -> None:
    path: Path = getattr(pair, part)
    path.write_bytes(path.read_bytes()[:-10])
    error = dataset(pair)[0, 0]
    assert isinstance(error, UserError) and str(error).startswith(f"{path}: corrupt or truncated")


def test_paths_of_any_bytes_are_kept() -> None:
    paths = [Path("a/b.png"), Path("ünï/図.png"), Path("c\nd"), Path("e\udcff")]
    pairs = [Pair(str(path), path, Path("m") / path) for path in paths]
    data = dataset(*pairs)
    assert len(data) == 4
    read = [data.pairs.to_read(row) for row in range(4)]
    assert [(p.image, p.mask) for p in read] == [(p.image, p.mask) for p in pairs]
    assert len(dataset()) == 0
