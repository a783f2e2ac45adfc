"""Samples: an image and its class ids, read, scaled and augmented."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.data.reading import ImageFormat, read_image, read_mask
from unet_ddp.errors import UserError

Key = tuple[int, int]
"""(epoch, index): all that a sample depends on, so that workers hold no state."""

_OWN: tuple[Literal["C", "W"], ...] = (
    "C",
    "W",
)  # as torch wants memory that it shares; copied where not


class Sample(NamedTuple):
    """One pair, or a batch of them with N in front."""

    image: Tensor
    """(H, W, C) uint8 or uint16: channels_last already, a quarter of float's bytes."""
    mask: Tensor
    """(H, W) uint8 class ids, IGNORE_ID where to ignore."""
    pair: Tensor
    """int64: the number of the pair in its data set."""


class SegmentationDataset(Dataset[Sample | UserError]):
    """Pairs of files as samples.

    Args:
        scale: images and masks are reduced to this fraction of their size.
        augmentation: None for the images as they are.
    """

    def __init__(
        self,
        pairs: list[Pair],
        labels: Labels,
        image_format: ImageFormat,
        *,
        scale: float,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.pairs = pairs
        self.labels = labels
        self.format = image_format
        self.scale = scale
        self.augmentation = augmentation

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: Key) -> Sample | UserError:
        """The sample, or why it can't be read: what a worker raises would lose its form."""
        try:
            return self._read(*key)
        except UserError as error:
            return error

    def _read(self, epoch: int, index: int) -> Sample:
        pair = self.pairs[index]
        image = read_image(pair.image, self.format, scale=self.scale)
        mask = self.labels.to_ids(read_mask(pair.mask, scale=self.scale), pair.mask)
        if self.augmentation is not None:
            image, mask = self.augmentation(image, mask, epoch=epoch, index=index)
        return Sample(
            torch.from_numpy(np.require(image, requirements=_OWN)),
            torch.from_numpy(np.require(mask, requirements=_OWN)),
            torch.tensor(index),
        )
