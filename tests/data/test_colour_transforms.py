"""The faster warp and colour jitter are the library's: its bits, and its colours to rounding."""

from __future__ import annotations

import random
from typing import Any

import albumentations
import cv2
import numpy as np
import pytest

from unet_ddp.data import colour_transforms

SHARE = (0.5, 1.5)
COLOURS = {"brightness": SHARE, "contrast": SHARE, "saturation": SHARE, "hue": (-0.05, 0.05)}
AFFINE = {"scale": (0.9, 1.1), "translate_percent": (-0.05, 0.05), "rotate": (-10, 10)}


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """Smooth colours, from black to white."""
    small = np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    large: np.ndarray = cv2.resize(small, (96, 64), interpolation=cv2.INTER_CUBIC)
    return large


def draw(transform: Any, seed: int, **parts: np.ndarray) -> dict[str, np.ndarray]:
    """Return what a transform makes of the parts with the random numbers of `seed`."""
    transform.set_random_state(np.random.default_rng(seed), random.Random(seed))
    changed: dict[str, np.ndarray] = transform(**parts)
    return changed


def test_a_warp_has_the_library_s_bits(photo: np.ndarray) -> None:
    mask = photo[..., 0] // 64
    options = {**AFFINE, "p": 1, "fill": 0, "fill_mask": 255}
    ours, theirs = colour_transforms.Affine(**options), albumentations.Affine(**options)
    for seed in range(20):
        found, expected = (draw(each, seed, image=photo, mask=mask) for each in (ours, theirs))
        for part in ("image", "mask"):
            assert np.array_equal(found[part], expected[part])
        assert found["image"].shape == photo.shape and (found["image"] != photo).any()


@pytest.mark.parametrize("changed", [*COLOURS, "all"])
def test_colours_are_as_near_to_float32_as_the_library_s(photo: np.ndarray, changed: str) -> None:
    same = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0)}
    options = COLOURS if changed == "all" else {**same, changed: COLOURS[changed]}
    ours, theirs = (
        module.ColorJitter(**options, p=1) for module in (colour_transforms, albumentations)
    )
    before, errors, usual = photo.copy(), [], []
    for seed in range(40):
        exact = 255 * draw(theirs, seed, image=photo.astype(np.float32) / 255)["image"]
        for transform, found in ((ours, errors), (theirs, usual)):
            image = draw(transform, seed, image=photo)["image"]
            assert image.dtype == np.uint8
            found.append(image - exact)
    assert np.abs(errors).mean() <= np.abs(usual).mean() + 0.01
    assert np.abs(errors).max() <= np.abs(usual).max() + 0.01
    assert abs(np.mean(errors)) <= abs(np.mean(usual)) + 0.01
    assert np.array_equal(photo, before)
