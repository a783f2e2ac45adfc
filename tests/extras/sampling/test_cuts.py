"""Parts of images: by class, and at random scales."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest

from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.resize import resize_area, resize_nearest
from unet_ddp.extras.sampling import cuts as module
from unet_ddp.extras.sampling.cuts import cut_sample


@cache
def cropping(size: tuple[int, int], scales: tuple[float, float] | None) -> Augmentation:
    return Augmentation(ImageFormat(1), "none", size, seed=3, cut=partial(cut_sample, scales))


def cut(
    image: np.ndarray,
    mask: np.ndarray,
    index: int,
    size: tuple[int, int] = (16, 20),
    *,
    scales: tuple[float, float] | None = None,
    drawn: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """A crop, not augmented otherwise."""
    changed, ids = cropping(size, scales)(image, mask, epoch=1, index=index, drawn=drawn)
    assert changed.shape == (*size, 1) and ids.shape == size
    return changed, ids


@pytest.mark.parametrize("pixel", [(0, 0), (59, 79), (30, 40), (2, 70)])
def test_a_pixel_of_the_class_is_anywhere_in_its_crop(pixel: tuple[int, int]) -> None:
    mask = np.zeros((60, 80), np.uint8)
    mask[pixel] = 2
    mask[:2, :2][mask[:2, :2] == 0] = IGNORE_ID
    image = np.arange(60 * 80, dtype=np.uint16).reshape(60, 80, 1)
    seen = np.zeros((16, 20), int)
    for index in range(200):
        changed, ids = cut(image, mask, index, drawn=2)
        assert (ids == 2).sum() == 1
        assert changed[ids == 2] == image[pixel]
        seen += ids == 2
    spread = [int((seen.any(axis=1 - axis)).sum()) for axis in (0, 1)]
    ends = [length - 1 - place for place, length in zip(pixel, (60, 80), strict=True)]
    assert spread == [min(side, place + 1, end + 1) for side, place, end in
                      zip((16, 20), pixel, ends, strict=True)]  # fmt: skip


def test_each_pixel_of_the_class_is_as_likely() -> None:
    """One in the corner as one of many in the middle; a class that is not there changes nothing."""
    mask = np.zeros((200, 200), np.uint8)
    mask[:3, :3], mask[100:103, 100:103] = 1, 1
    image = np.zeros((200, 200, 1), np.uint8)
    shown = [int((cut(image, mask, index, drawn=1)[1] == 1).sum()) for index in range(100)]
    assert min(shown) > 0
    corner = np.indices((200, 200)).sum(axis=0)[..., None].astype(np.uint16)
    near = sum(cut(corner, mask, index, drawn=1)[0].min() < 60 for index in range(100))
    assert abs(near - 50) < 4 * 5
    assert len({cut(corner, mask, index, drawn=5)[0].tobytes() for index in range(20)}) > 15


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_scaled_crop_is_a_crop_of_the_scaled_image(
    factor: float, rng: np.random.Generator
) -> None:
    """Pixel by pixel, but for the outermost of an enlarged one, which lack a neighbour."""
    image = rng.integers(0, 256, (40, 50, 1), dtype=np.uint8)
    mask = rng.integers(0, 3, (40, 50), dtype=np.uint8)
    wholes = []  # a halved image can begin at an odd pixel
    for top, left in np.ndindex(2, 2) if factor < 1 else [(0, 0)]:
        part = slice(top, 40 - top), slice(left, 50 - left)
        size = (int(len(range(40)[part[0]]) * factor), int(len(range(50)[part[1]]) * factor))
        wholes.append((resize_area(image[part], size), resize_nearest(mask[part], size)))
    inner = slice(1, -1) if factor > 1 else slice(None)
    for index in range(20):
        changed, ids = cut(image, mask, index, scales=(factor, factor))
        found = 0
        for whole, whole_ids in wholes:
            for top, left in np.ndindex(whole.shape[0] - 15, whole.shape[1] - 19):
                place = slice(top, top + 16), slice(left, left + 20)
                if (whole_ids[place] == ids).all():
                    assert (whole[place][inner, inner] == changed[inner, inner]).all()
                    found += 1
        assert found == 1


def test_scales_are_log_uniform_and_only_what_is_shown_is_resized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the samples are shrunk; the part that is read is the crop over the factor."""
    sizes: list[tuple[int, ...]] = []

    def resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        sizes.append(pixels.shape)
        return resize_area(pixels, size)

    monkeypatch.setattr(module, "resize_area", resize)
    image, mask = np.zeros((300, 300, 1), np.uint8), np.zeros((300, 300), np.uint8)
    for index in range(200):
        cut(image, mask, index, (100, 50), scales=(0.5, 2.0), drawn=[None, 0][index % 2])
    factors = np.log2(100 / np.array([rows for rows, _, _ in sizes]))
    assert -1 <= factors.min() < -0.9 and 0.9 < factors.max() <= 1
    assert np.abs(np.histogram(factors, 4, (-1, 1))[0] - 50).max() < 4 * 7
    ratio = np.array([rows / columns for rows, columns, _ in sizes])
    assert np.abs(ratio - 2).max() < 0.05


def test_what_a_small_image_leaves_of_the_crop_is_ignored() -> None:
    image, mask = np.full((16, 20, 1), 200, np.uint8), np.ones((16, 20), np.uint8)
    changed, ids = cut(image, mask, 0, scales=(0.5, 0.5), drawn=1)
    assert (ids == 1).sum() == 8 * 10 and (ids == IGNORE_ID).sum() == 16 * 20 - 80
    assert (changed[ids == 1] == 200).all() and (changed[ids == IGNORE_ID] == 0).all()
    assert (cut(image, mask, 0, scales=(2, 2))[1] == 1).all()


def test_classes_are_not_mixed_by_scaling(rng: np.random.Generator) -> None:
    mask = np.where(rng.random((60, 80)) < 0.5, 0, 200).astype(np.uint8)
    for index in range(20):
        _, ids = cut(mask[..., None], mask, index, scales=(0.5, 2))
        assert set(np.unique(ids)) <= {0, 200, IGNORE_ID}
