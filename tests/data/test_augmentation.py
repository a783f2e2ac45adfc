"""An augmented sample is a function of (seed, epoch, index), and its mask follows its image."""

from __future__ import annotations

import numpy as np
import pytest

from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.readers.base import ImageFormat

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
