"""Samples: an image and its class ids, read, scaled and augmented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from unet_ddp.data.augmentation import Augmentation, Cut
from unet_ddp.data.labels import Labels
from unet_ddp.data.mask_sizes import fit_mask
from unet_ddp.data.masks import IGNORE_ID, Ids, Size, surround
from unet_ddp.data.memory import Arrays, SampleStore
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.preprocessing import PixelRange
from unet_ddp.data.readers.base import Codes, ImageFormat, Scene
from unet_ddp.data.readers.read import Source
from unet_ddp.data.samplers import Draw, Key, Order, shuffle
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError

_WRITABLE: list[Literal["C", "W"]] = ["C", "W"]  # what torch.from_numpy needs; copied if not


class Sample(NamedTuple):
    """One image with its class ids, or a batch with a leading axis N."""

    image: Tensor  # (H, W, C) in the files' type: channels_last already, a quarter of float's bytes
    mask: Tensor  # (H, W) uint8 class ids; IGNORE_ID for pixels that do not count
    pair: Tensor  # int64: index of the pair in its data set


class RareKind(NamedTuple):
    """A kind of validation images of which training has few."""

    name: str
    share: float  # of the training images
    rows: list[int]  # of the validation pairs


@dataclass(frozen=True)
class PreparedData:
    """A data set, ready to train on."""

    split: Split
    labels: Labels
    format: ImageFormat
    crop_size: Size | None  # (height, width) to train on; None if all have one size
    smallest: Size  # (height, width) of the smallest image, after scaling
    notes: list[str]  # lines for the user, warnings included
    range: PixelRange | None = None  # of the training images; None for 8 bit, where it is known
    groups: dict[str, str] = field(default_factory=dict)  # group of each pair, by name
    one_size: Size | None = None  # (height, width) of all images; None if they differ
    draw: Draw | None = None  # of training images
    cut: Cut | None = None  # of training samples, before their crop
    most_pixels: int = 0  # of the largest image, after scaling
    rare: Sequence[RareKind] = ()
    order: Order = shuffle  # of training images


@dataclass(eq=False, repr=False)
class SegmentationDataset(Dataset[Sample | UserError]):
    """Pairs of files as samples."""

    pairs: Pairs
    labels: Labels  # map the masks' values to class ids
    image_format: ImageFormat  # of all images
    _: KW_ONLY
    scale: float  # images and masks are reduced to this fraction of their size
    augmentation: Augmentation | None = None  # None for the images as they are
    size: Size | None = None  # (height, width) that all samples must have; None for any
    resize_masks: bool = False  # to the size of their images
    store: SampleStore | None = None  # keeps samples, decoded and scaled
    draw: Draw | None = None  # of the image for each key; None for the image of its index

    def __post_init__(self) -> None:
        self.pairs.share()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: Key) -> Sample | UserError:
        """Return the sample, or why it can't be read: a DataLoader would rewrite what is raised."""
        epoch, index = key
        own, drawn = self.draw(epoch, index) if self.draw else (index, None)
        try:
            pair = self.pairs.to_read(own)
            if self.store is not None:
                image, mask = self.store.load(own, pair, self._decode)
            else:
                image, mask = self._decode(pair)
            if self.size is not None and image.shape[:2] != self.size:
                (height, width), (rows, columns) = image.shape[:2], self.size
                raise UserError(
                    f"{pair.image}: {width}x{height} pixels after scaling, the others "
                    f"{columns}x{rows}; use --crop-size to train on crops of one size"
                )
            if self.augmentation is not None:
                image, mask = self.augmentation(image, mask, epoch=epoch, index=index, drawn=drawn)
        except UserError as error:
            return error
        return Sample(
            torch.from_numpy(np.require(image, requirements=_WRITABLE)),
            torch.from_numpy(np.require(mask, requirements=_WRITABLE)),
            torch.tensor(own),
        )

    def _decode(self, pair: Pair) -> Arrays:
        """Return image (H, W, C) and class ids (H, W) of a pair, scaled."""
        with self.pairs.local(pair.image) as local, Source(local) as source:
            scale = self.find_scale(source)
            image, nodata_mask = source.image(self.image_format, scale=scale)
        mask = self.read_ids(pair, image.shape[:2], scale)
        if nodata_mask is not None:
            mask[nodata_mask] = IGNORE_ID
        return image, mask

    def find_scale(self, source: Source) -> float:
        """Return the scale of an image; of a map, that which brings it to one ground resolution."""
        if self.image_format.ground_resolution is None:
            return self.scale
        with source.reading() as opened:
            if isinstance(opened, Scene):
                return opened.find_scale(self.image_format, self.scale)
        return self.scale

    def read_truth(self, index: int) -> Ids:
        """Return the class ids (H, W) of a pair at its image's own size, or raise a UserError.

        The image is decoded only if the data set has a no-data value.
        """
        pair = self.pairs.to_read(index)
        with self.pairs.local(pair.image) as local, Source(local) as source:
            ids = self.read_ids(pair, source.header.size, 1.0)
            if self.image_format.nodata is not None:
                _, nodata_mask = source.image(self.image_format)
                ids[nodata_mask] = IGNORE_ID
        return ids

    def read_ids(self, pair: Pair, size: Size, scale: float) -> Ids:
        """Return the class ids of a pair's image of this size (H, W), IGNORE_ID around a smaller mask."""
        if pair.inside is None:
            codes = self.read_codes(pair.mask, size, scale)
            return self.labels.to_ids(codes, pair.mask)  # after scaling: borders keep their width
        ids = self.labels.to_ids(self.read_codes(pair.mask, None, scale), pair.mask)
        return surround(ids, pair.inside, size, scale, IGNORE_ID)

    def read_codes(self, path: Path, size: Size | None, scale: float) -> Codes:
        """Return the values (H, W) of a mask at `scale`, which must have or get this size, if one is given."""
        planes, void = self.labels.may_overlap, self.labels.void
        with self.pairs.local(path, void) as local, Source(local, planes) as source:
            codes = source.mask(scale=scale, labels=self.labels)
        if size is None:
            return codes
        return fit_mask(codes, size, path, resize=self.resize_masks, is_whole=scale == 1)
