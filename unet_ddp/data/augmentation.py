"""Random changes of an image and its mask, a function of (seed, epoch, index) alone."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from unet_ddp.config import PRESETS
from unet_ddp.data.masks import IGNORE_ID, Ids, Size
from unet_ddp.data.readers.base import ImageFormat, Pixels
from unet_ddp.errors import UserError
from unet_ddp.plugins import find

Cut = Callable[[Pixels, Ids, Size, int | None, np.random.Generator], tuple[Pixels, Ids]]
"""Of an image, its mask, the size of a crop, and the class it was chosen for: a part of both."""

_BANDS = 64  # at a time: OpenCV, which turns and shifts them, takes 128 at most, and two otherwise


class Augmentation:
    """A preset of albumentations with new random numbers for each sample of each epoch.

    Each call seeds the transforms from (seed, epoch, index), so that a sample does not depend
    on which process makes it. One generator feeds all transforms of a call: albumentations'
    own `set_random_seed` would give each of them the same numbers.

    Args:
        image_format: of the images; only 8-bit colour has its colours changed.
        preset: none, photo, overhead or street, or the user's own; see ``--augmentation``.
        crop_size: (height, width) of random crops, smaller images padded; None for whole images.
        seed: of the run.
        cut: what takes a part of an image before it is cropped, if anything does.
        num_classes: number of class ids in the masks.
    """

    def __init__(
        self,
        image_format: ImageFormat,
        preset: str,
        crop_size: Size | None,
        *,
        seed: int,
        cut: Cut | None = None,
        num_classes: int = IGNORE_ID,
    ) -> None:
        self.preset = preset
        self.num_classes = num_classes
        self.seed = seed
        self.crop_size = crop_size
        self.cut = cut
        channels = image_format.channels
        is_colour = channels == 3 and image_format.dtype == "uint8"
        self._at_once = _BANDS - 1 if channels % _BANDS == 2 else _BANDS
        self._first_bands = {"image": 0}
        for first in range(self._at_once, channels, self._at_once):
            self._first_bands[f"from {first}"] = first
        # albumentations asks a server for its newest version at import, unless this is set.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations

        self._own: Any = None
        self._is_tried = False  # in this process
        if preset not in PRESETS:
            self._own = find("augmentations", preset)
            preset = "none"
        kinds = albumentations.BasicTransform, albumentations.BaseCompose
        self._is_function = not isinstance(self._own, kinds)
        transforms = _transforms(albumentations, preset, crop_size, is_colour)
        if not self._is_function:
            transforms.append(self._own)
        others = {name: "image" for name in self._first_bands if name != "image"}
        self.compose = albumentations.Compose(transforms, additional_targets=others)

    def __call__(
        self, image: Pixels, mask: Ids, *, epoch: int, index: int, drawn: int | None = None
    ) -> tuple[Pixels, Ids]:
        """Return the changed image (H, W, C) and mask (H, W); pixels from outside are IGNORE_ID.

        A random pixel of the class `drawn`, if the mask has one, is in the crop.
        """
        generator = np.random.default_rng([self.seed, epoch, index])
        if self.crop_size and self.cut:
            image, mask = self.cut(image, mask, self.crop_size, drawn, generator)
        if self._own is None:
            return self._change(image, mask, generator)
        try:
            changed, ids = self._change_by_own(image, mask, generator)
            self._check(changed, ids, image, mask)
            if not self._is_tried:
                self._is_tried = True
                self._check_repeats(image, mask)
        except Exception as error:  # of code that is not ours
            reason = str(error)
            if not isinstance(error, UserError):
                reason = f"{type(error).__name__}: {reason}"
            raise UserError(
                f"--augmentation {self.preset}: {reason}; see docs/own_parts.md"
            ) from error
        return changed, ids

    def _change_by_own(
        self, image: Pixels, mask: Ids, generator: np.random.Generator
    ) -> tuple[Pixels, Ids]:
        changed, ids = self._change(image, mask, generator)
        if self._is_function:  # it may write into its arrays, and a cache has the same
            changed, ids = self._own(changed.copy(), ids.copy(), generator)
        return changed, ids

    def _check_repeats(self, image: Pixels, mask: Ids) -> None:
        """Refuse an augmentation whose result depends on more than the generator."""
        same = [np.random.default_rng([self.seed, 0, 0]) for _ in range(2)]
        one, other = (self._change_by_own(image, mask, generator) for generator in same)
        if not all(map(np.array_equal, one, other)):
            raise UserError(
                "gives two results for one generator, so a run could not be repeated; take all random "
                "numbers from the generator"
            )

    def _check(self, changed: Pixels, ids: Ids, image: Pixels, mask: Ids) -> None:
        """Refuse arrays that a batch can't have, as the user's own augmentation may return them."""
        size = self.crop_size or mask.shape
        for what, array, shape, dtype in (
            ("image", changed, (*size, image.shape[2]), image.dtype),
            ("mask", ids, size, mask.dtype),
        ):
            if array.shape != shape or array.dtype != dtype:
                raise UserError(
                    f"returns {what} {array.shape} of {array.dtype}; expected {shape} of {dtype}"
                )
        others = ids[(ids >= self.num_classes) & (ids != IGNORE_ID)]
        if others.size:
            raise UserError(
                f"returns class {others[0]}; expected 0 to {self.num_classes - 1}, or {IGNORE_ID} to ignore"
            )

    def _change(
        self, image: Pixels, mask: Ids, generator: np.random.Generator
    ) -> tuple[Pixels, Ids]:
        """Return the image and the mask after the transforms of albumentations."""
        self.compose.set_random_state(generator, random.Random(int(generator.integers(2**63))))
        if len(self._first_bands) == 1:
            changed = self.compose(image=image, mask=mask)
            return changed["image"], changed["mask"]
        groups = {  # all change alike
            name: np.ascontiguousarray(image[..., first : first + self._at_once])
            for name, first in self._first_bands.items()
        }
        changed = self.compose(**groups, mask=mask)
        return np.concatenate([changed[name] for name in groups], axis=2), changed["mask"]


def _transforms(a: Any, preset: str, crop_size: Size | None, is_colour: bool) -> list[Any]:
    """Return the transforms of a preset; `a` is the library."""
    outside = {"fill": 0, "fill_mask": IGNORE_ID}
    changes = a
    if is_colour:
        from unet_ddp.data import colour_transforms as changes  # faster
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
    share = (0.8, 1.2)
    hue = (-0.02, 0.02)
    jitter = {"brightness": share, "contrast": share, "saturation": share, "hue": hue}
    if preset == "street":  # as in mmsegmentation and HRNet: no rotation; colours of SSD's
        strong = (0.5, 1.5)
        hue = (-0.05, 0.05)
        jitter = {
            "brightness": (0.875, 1.125),
            "contrast": strong,
            "saturation": strong,
            "hue": hue,
        }
    else:
        shift = {"scale": (0.9, 1.1), "translate_percent": (-0.05, 0.05), "rotate": (-10, 10)}
        transforms.append(changes.Affine(**shift, p=0.5, **outside))
    if is_colour:
        transforms.append(changes.ColorJitter(**jitter, p=0.5))
    return transforms
