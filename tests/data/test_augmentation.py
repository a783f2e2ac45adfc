"""An augmented sample is a function of (seed, epoch, index), and its mask follows its image."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from unet_ddp.data import augmentation as module
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.resize import resize_area, resize_nearest

AFFINE = {
    "scale": (0.9, 1.1), "translate_percent": (-0.05, 0.05), "rotate": (-10, 10), "p": 0.5,
    "fill": 0, "fill_mask": IGNORE_ID,
}  # fmt: skip
COLOURS = {
    "brightness": (0.8, 1.2), "contrast": (0.8, 1.2), "saturation": (0.8, 1.2), "hue": (-0.02, 0.02),
    "p": 0.5,
}  # fmt: skip
SHIFTED = [("HorizontalFlip", {"p": 0.5}), ("Affine", AFFINE)]
TURNED = [SHIFTED[0], ("VerticalFlip", {"p": 0.5}), SHIFTED[1]]
COLOURED = [("ColorJitter", COLOURS)]
STREET = [("ColorJitter", {"brightness": (0.875, 1.125), "contrast": (0.5, 1.5), "p": 0.5,
                           "saturation": (0.5, 1.5), "hue": (-0.05, 0.05)})]  # fmt: skip


def crop(height: int, width: int) -> list[tuple[str, dict[str, object]]]:
    return [("RandomCrop", {"height": height, "width": width, "pad_if_needed": True, "fill": 0,
                            "fill_mask": IGNORE_ID, "p": 1.0})]  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "size", "image_format", "expected"),
    [
        ("none", (8, 9), ImageFormat(3), crop(8, 9)),
        ("photo", None, ImageFormat(3), SHIFTED + COLOURED),
        ("photo", None, ImageFormat(3, "uint16"), SHIFTED),
        ("photo", (8, 8), ImageFormat(1), crop(8, 8) + SHIFTED),
        ("street", (8, 9), ImageFormat(3), crop(8, 9) + SHIFTED[:1] + STREET),
        ("street", None, ImageFormat(1), SHIFTED[:1]),
        ("overhead", None, ImageFormat(4), TURNED),
        ("overhead", (8, 9), ImageFormat(3), crop(8, 9) + TURNED + COLOURED),
        ("overhead", (8, 8), ImageFormat(2),
         crop(8, 8) + TURNED[:2] + [("RandomRotate90", {"p": 0.5})] + TURNED[2:]),
    ],
)  # fmt: skip
def test_the_transforms_of_a_preset(
    preset: str, size: tuple[int, int] | None, image_format: ImageFormat, expected: list[object]
) -> None:
    augmentation = Augmentation(image_format, preset, size, seed=0)
    transforms = augmentation.compose.transforms
    assert [type(transform).__name__ for transform in transforms] == [name for name, _ in expected]
    for transform, (_, options) in zip(transforms, expected, strict=True):
        assert {name: getattr(transform, name) for name in options} == {
            name: {"x": value, "y": value} if name in ("scale", "translate_percent") else value
            for name, value in options.items()
        }


def test_a_sample_is_a_function_of_seed_epoch_and_index(rng: np.random.Generator) -> None:
    image = rng.integers(0, 256, (20, 26, 3), dtype=np.uint8)
    mask = rng.integers(0, 2, (20, 26), dtype=np.uint8)
    before = image.copy(), mask.copy()

    def draw(seed: int, epoch: int, index: int) -> bytes:
        augmentation = Augmentation(ImageFormat(3), "photo", (16, 16), seed=seed)
        changed, ids = augmentation(image, mask, epoch=epoch, index=index)
        assert changed.dtype == ids.dtype == np.uint8
        return changed.tobytes() + ids.tobytes()

    keys = [(3, 0, 0), (3, 0, 1), (3, 1, 0), (4, 0, 0), (0, 3, 0)]
    drawn = [draw(*key) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert [draw(*key) for key in keys] == drawn
    one = Augmentation(ImageFormat(3), "photo", (16, 16), seed=3)
    for epoch, index in ((0, 1), (1, 0), (0, 0)):  # in another order, by one object
        found = b"".join(part.tobytes() for part in one(image, mask, epoch=epoch, index=index))
        assert found == drawn[keys.index((3, epoch, index))]
    assert (image == before[0]).all() and (mask == before[1]).all()


def test_padding_counts_nowhere() -> None:
    augmentation = Augmentation(ImageFormat(3), "none", (16, 12), seed=0)
    image, mask = np.full((8, 10, 3), 200, np.uint8), np.zeros((8, 10), np.uint8)
    changed, ids = augmentation(image, mask, epoch=0, index=0)
    assert changed.shape == (16, 12, 3) and ids.shape == (16, 12)
    assert (ids == 0).sum() == 80 and (ids == IGNORE_ID).sum() == 16 * 12 - 80
    assert (changed[ids == 0] == 200).all() and (changed[ids == IGNORE_ID] == 0).all()


@pytest.mark.parametrize("preset", ["photo", "overhead"])
def test_a_rotated_in_border_counts_nowhere(preset: str) -> None:
    """Neither as class 0 nor as another: it is black and IGNORE_ID."""
    augmentation = Augmentation(ImageFormat(1), preset, None, seed=0)
    image, mask = np.full((40, 40, 1), 200, np.uint8), np.ones((40, 40), np.uint8)
    borders = 0
    for index in range(20):
        changed, ids = augmentation(image, mask, epoch=0, index=index)
        assert set(np.unique(ids)) <= {1, IGNORE_ID}
        assert (changed[ids == 1] >= 80).all()  # edges blend
        assert (changed[ids == IGNORE_ID] <= 120).all()
        borders += int((changed[ids == IGNORE_ID] == 0).any())
    assert 5 <= borders <= 15  # about every second sample is turned or shifted


@pytest.mark.parametrize("preset", ["photo", "overhead"])
@pytest.mark.parametrize(
    ("bands", "dtype"), [(300, "uint8"), (66, "uint8"), (300, "uint16"), (130, "float32")]
)
def test_hundreds_of_bands_are_changed_alike(
    preset: str, bands: int, dtype: str, rng: np.random.Generator
) -> None:
    """OpenCV takes 128, and interpolates two in another way. Each is what a single one becomes."""
    band = rng.integers(0, 80, (20, 26, 1)).astype(dtype)
    mask = (band[..., 0] > 39).astype(np.uint8)
    many, one = (
        Augmentation(ImageFormat(channels, dtype), preset, (16, 16), seed=5)
        for channels in (bands, 1)
    )
    order = np.arange(bands) % 3 + 1  # bands in the order they came in
    for index in range(10):
        image, ids = many(band * order.astype(dtype), mask, epoch=1, index=index)
        expected, expected_ids = one(band, mask, epoch=1, index=index)
        assert image.shape == (16, 16, bands) and image.dtype == band.dtype
        assert (image[..., ::3] == expected).all() and (ids == expected_ids).all()
        assert all(
            (image[..., k] == image[..., k % 3]).all() for k in (63, 64, bands - 2, bands - 1)
        )
        assert image[..., 1].sum() > image[..., 0].sum()


def test_flips_are_independent() -> None:
    """With albumentations' set_random_seed, both flips fire together every time."""
    augmentation = Augmentation(ImageFormat(1), "overhead", None, seed=0)
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
def test_the_mask_follows_the_image(preset: str, size: tuple[int, int]) -> None:
    augmentation = Augmentation(ImageFormat(3), preset, (32, 32), seed=0)
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


# -- crops by class, and at random scales --------------------------------------------------


@cache
def cropping(size: tuple[int, int], scales: tuple[float, float] | None) -> Augmentation:
    return Augmentation(ImageFormat(1), "none", size, seed=3, scales=scales)


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
