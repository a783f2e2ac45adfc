"""Samples: an image and its class ids, read, scaled and augmented."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.cache import SampleCache
from unet_ddp.data.formats.header import ImageFormat, Pixels
from unet_ddp.data.formats.read import read_mask, read_with_nodata_mask, resize_nearest
from unet_ddp.data.labels import IGNORE_ID, Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.errors import UserError

Key = tuple[int, int]
"""(epoch, index): all that a sample depends on, so that workers hold no state."""

_OWN: tuple[Literal["C", "W"], ...] = (
    "C",
    "W",
)  # as torch wants memory that it shares; copied where not
_DRAWS = 100  # other samples that are tried in the place of one that can't be read


class Sample(NamedTuple):
    """One pair, or a batch of them with N in front."""

    image: Tensor
    """(H, W, C) as in the file: channels_last already, for 8 bit a quarter of float's bytes."""
    mask: Tensor
    """(H, W) uint8 class ids, IGNORE_ID where to ignore."""
    pair: Tensor
    """int64: the number of the pair in its data set."""


class Replaced(NamedTuple):
    """A sample in the place of one that can't be read; none where nothing is to be in its place."""

    sample: Sample | None
    errors: list[UserError]


class SegmentationDataset(Dataset[Sample | Replaced | UserError]):
    """Pairs of files as samples.

    Args:
        scale: images and masks are reduced to this fraction of their size.
        augmentation: None for the images as they are.
        size: (height, width) that all samples must have; None for any.
        resize_masks: bring masks of another size to that of their images.
        bad: what becomes of a pair that can't be read: told, replaced by another, or left out.
        cache: where samples are kept as they come from the reader.
    """

    def __init__(
        self,
        pairs: list[Pair],
        labels: Labels,
        image_format: ImageFormat,
        *,
        scale: float,
        augmentation: Augmentation | None = None,
        size: tuple[int, int] | None = None,
        resize_masks: bool = False,
        bad: Literal["told", "replaced", "left out"] = "told",
        cache: SampleCache | None = None,
    ) -> None:
        self.images = PathTable(pair.image for pair in pairs)
        self.masks = PathTable(pair.mask for pair in pairs)
        self.labels = labels
        self.format = image_format
        self.scale = scale
        self.augmentation = augmentation
        self.size = size
        self.resize_masks = resize_masks
        self.bad = bad
        self.cache = cache
        self.slots = cache.slots(pairs) if cache is not None else None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: Key) -> Sample | Replaced | UserError:
        """The sample, or why it can't be read: what a worker raises would lose its form."""
        try:
            return self._read(*key)
        except UserError as error:
            if self.bad == "told":
                return error
            return Replaced(None, [error]) if self.bad == "left out" else self._another(key, error)

    def _another(self, key: Key, error: UserError) -> Replaced | UserError:
        """Another sample, by (epoch, index) alone: the same one on any number of ranks."""
        errors = [error]
        for other in np.random.default_rng([1, *key]).integers(len(self), size=_DRAWS):
            try:
                return Replaced(self._read(key[0], int(other)), errors)
            except UserError as again:
                errors.append(again)
        return error

    def _read(self, epoch: int, index: int) -> Sample:
        image, mask = self._kept(index)
        if self.size is not None and image.shape[:2] != self.size:
            raise UserError(
                f"{self.images[index]}: at its scale {image.shape[1]}x{image.shape[0]} pixels, the "
                f"others {self.size[1]}x{self.size[0]}; give --crop-size to train on parts of one size"
            )
        if self.augmentation is not None:
            image, mask = self.augmentation(image, mask, epoch=epoch, index=index)
        return Sample(
            torch.from_numpy(np.require(image, requirements=_OWN)),
            torch.from_numpy(np.require(mask, requirements=_OWN)),
            torch.tensor(index),
        )

    def _kept(self, index: int) -> tuple[Pixels, NDArray[np.uint8]]:
        """The pair, decoded now or before."""
        if self.cache is None or self.slots is None:
            return self._decode(index)
        slot = int(self.slots[index])
        found = self.cache.get(slot)
        if found is None:
            found = self._decode(index)
            self.cache.put(slot, *found)
        return found

    def _decode(self, index: int) -> tuple[Pixels, NDArray[np.uint8]]:
        """Image (H, W, C) and class ids (H, W) of a pair, scaled."""
        image_path, mask_path = self.images[index], self.masks[index]
        image, nodata_mask = read_with_nodata_mask(image_path, self.format, scale=self.scale)
        mask = self.labels.to_ids(read_mask(mask_path, scale=self.scale), mask_path)
        if mask.shape != image.shape[:2]:
            if not self.resize_masks:
                raise UserError(f"{mask_path}: not of the size of {image_path}; make them equal")
            mask = resize_nearest(mask, image.shape[:2])
        if nodata_mask is not None:
            mask[nodata_mask] = IGNORE_ID
        return image, mask


class PathTable:
    """Many paths in two arrays.

    A list of them would grow a reading process's memory epoch by epoch: to look at a Python
    object writes its reference count, which copies the page that was shared with the parent.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self.ends = np.cumsum([0, *map(len, encoded)])
        self.letters = np.frombuffer(b"".join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, number: int) -> Path:
        start, end = self.ends[number], self.ends[number + 1]
        return Path(os.fsdecode(self.letters[start:end].tobytes()))
