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
    """A preset of albumentations, drawn anew for each sample of each epoch.

    Each call seeds the transforms from (seed, epoch, index), so that a sample does not depend
    on which process makes it. One generator feeds all transforms of a call: albumentations'
    own `set_random_seed` would give each of them the same numbers.

    Args:
        preset: none, photo or overhead; see ``--augmentation``.
        crop_size: (height, width) of random crops, smaller images padded; None for whole images.
        colour: whether the images are 8-bit colour, which the colour changes need.
        channels: how many bands the images have, any number.
    """

    def __init__(
        self,
        preset: str,
        crop_size: tuple[int, int] | None,
        *,
        colour: bool,
        seed: int,
        channels: int = 3,
    ) -> None:
        self.seed = seed
        starts = range(0, channels, _BANDS)
        self.parts = {f"from {start}" if start else "image": start for start in starts}
        # albumentations asks a server for its newest version at import, unless told not to.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations

        self.compose = albumentations.Compose(
            _transforms(albumentations, preset, crop_size, colour),
            additional_targets={name: "image" for name, start in self.parts.items() if start},
        )

    @classmethod
    def for_images(
        cls, form: ImageFormat, preset: str, crop_size: tuple[int, int] | None, *, seed: int
    ) -> Augmentation | None:
        """What changes images of this kind; None for nothing."""
        if preset == "none" and crop_size is None:
            return None
        colour = form.channels == 3 and form.dtype == "uint8"
        return cls(preset, crop_size, colour=colour, seed=seed, channels=form.channels)

    def __call__(
        self, image: Pixels, mask: NDArray[np.uint8], *, epoch: int, index: int
    ) -> tuple[Pixels, NDArray[np.uint8]]:
        """The changed image (H, W, C) and mask (H, W); pixels from outside are IGNORE_ID."""
        sequence = np.random.SeedSequence([self.seed, epoch, index])
        generator = np.random.default_rng(sequence)
        self.compose.set_random_state(generator, random.Random(int(generator.integers(2**63))))
        if len(self.parts) == 1:
            changed = self.compose(image=image, mask=mask)
            return changed["image"], changed["mask"]
        bands = {  # all are changed alike
            name: np.ascontiguousarray(image[..., start : start + _BANDS])
            for name, start in self.parts.items()
        }
        changed = self.compose(**bands, mask=mask)
        return np.concatenate([changed[name] for name in self.parts], axis=2), changed["mask"]


def _transforms(
    albumentations: Any, preset: str, crop_size: tuple[int, int] | None, colour: bool
) -> list[Any]:
    a = albumentations
    transforms = []
    if crop_size is not None:
        height, width = crop_size
        transforms.append(
            a.RandomCrop(height, width, pad_if_needed=True, fill=0, fill_mask=IGNORE_ID)
        )
    if preset == "none":
        return transforms
    transforms.append(a.HorizontalFlip(p=0.5))
    if preset == "overhead":
        transforms += [a.VerticalFlip(p=0.5)]
        if crop_size is not None and crop_size[0] == crop_size[1]:
            transforms.append(a.RandomRotate90(p=0.5))  # a batch has one size
    transforms.append(
        a.Affine(
            scale=(0.9, 1.1),
            translate_percent=(-0.05, 0.05),
            rotate=(-10, 10),
            fill=0,
            fill_mask=IGNORE_ID,
            p=0.5,
        )
    )
    if colour:
        transforms.append(
            a.ColorJitter(
                brightness=(0.8, 1.2), contrast=(0.8, 1.2), saturation=(0.8, 1.2), hue=(-0.02, 0.02),
                p=0.5,
            )
        )  # fmt: skip
    return transforms
