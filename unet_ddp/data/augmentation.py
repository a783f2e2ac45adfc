"""Random changes of an image and its mask, a function of (seed, epoch, index) alone."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats.header import ImageFormat, Pixels
from unet_ddp.data.labels import IGNORE_ID

_BANDS = 64  # at a time: OpenCV, which turns and shifts them, takes 128 at most


class Augmentation:
    """A preset of albumentations with new random numbers for each sample of each epoch.

    Each call seeds the transforms from (seed, epoch, index), so that a sample does not depend
    on which process makes it. One generator feeds all transforms of a call: albumentations'
    own `set_random_seed` would give each of them the same numbers.

    Args:
        image_format: of the images; only 8-bit colour has its colours changed.
        preset: none, photo or overhead; see ``--augmentation``.
        crop_size: (height, width) of random crops, smaller images padded; None for whole images.
        seed: of the run.
    """

    def __init__(
        self,
        image_format: ImageFormat,
        preset: str,
        crop_size: tuple[int, int] | None,
        *,
        seed: int,
    ) -> None:
        self.seed = seed
        colour = image_format.channels == 3 and image_format.dtype == "uint8"
        starts = range(0, image_format.channels, _BANDS)
        self._first_bands = {f"from {start}" if start else "image": start for start in starts}
        # albumentations asks a server for its newest version at import, unless this is set.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations

        self.compose = albumentations.Compose(
            _transforms(albumentations, preset, crop_size, colour),
            additional_targets={name: "image" for name in self._first_bands if name != "image"},
        )

    @classmethod
    def for_images(
        cls, image_format: ImageFormat, preset: str, crop_size: tuple[int, int] | None, *, seed: int
    ) -> Augmentation | None:
        """Return the augmentation of such images; None if nothing is to be changed."""
        if preset == "none" and crop_size is None:
            return None
        return cls(image_format, preset, crop_size, seed=seed)

    def __call__(
        self, image: Pixels, mask: NDArray[np.uint8], *, epoch: int, index: int
    ) -> tuple[Pixels, NDArray[np.uint8]]:
        """Return the changed image (H, W, C) and mask (H, W); pixels from outside are IGNORE_ID."""
        sequence = np.random.SeedSequence([self.seed, epoch, index])
        generator = np.random.default_rng(sequence)
        self.compose.set_random_state(generator, random.Random(int(generator.integers(2**63))))
        if len(self._first_bands) == 1:
            changed = self.compose(image=image, mask=mask)
            return changed["image"], changed["mask"]
        groups = {  # all change alike
            name: np.ascontiguousarray(image[..., first : first + _BANDS])
            for name, first in self._first_bands.items()
        }
        changed = self.compose(**groups, mask=mask)
        return np.concatenate([changed[name] for name in groups], axis=2), changed["mask"]


def _transforms(a: Any, preset: str, crop_size: tuple[int, int] | None, colour: bool) -> list[Any]:
    """Return the transforms of a preset; `a` is the library."""
    outside = {"fill": 0, "fill_mask": IGNORE_ID}
    transforms = []
    if crop_size is not None:
        transforms.append(a.RandomCrop(*crop_size, pad_if_needed=True, **outside))
    if preset == "none":
        return transforms
    transforms.append(a.HorizontalFlip(p=0.5))
    if preset == "overhead":
        transforms.append(a.VerticalFlip(p=0.5))
        if crop_size is not None and crop_size[0] == crop_size[1]:
            transforms.append(a.RandomRotate90(p=0.5))  # a batch has one size
    shift = {"scale": (0.9, 1.1), "translate_percent": (-0.05, 0.05), "rotate": (-10, 10)}
    transforms.append(a.Affine(**shift, p=0.5, **outside))
    if colour:
        share = (0.8, 1.2)
        jitter = {"brightness": share, "contrast": share, "saturation": share}
        transforms.append(a.ColorJitter(**jitter, hue=(-0.02, 0.02), p=0.5))
    return transforms
