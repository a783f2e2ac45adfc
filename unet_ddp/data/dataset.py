"""Samples: an image and its class ids, read, scaled and augmented."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.cache import Arrays, SampleCache, Stamps
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.memory import SampleMemory
from unet_ddp.data.packs import PackedPairs
from unet_ddp.data.pairs import Pair, mask_size_message
from unet_ddp.data.readers.header import Codes, ImageFormat
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.data.readers.resize import resize_nearest
from unet_ddp.data.samplers import ClassDraw, Key
from unet_ddp.errors import UserError
from unet_ddp.storage import as_path, hold, is_remote

_WRITABLE: list[Literal["C", "W"]] = ["C", "W"]  # what torch.from_numpy needs; copied if not


class Sample(NamedTuple):
    """One image with its class ids, or a batch with a leading axis N."""

    image: Tensor  # (H, W, C) in the files' type: channels_last already, a quarter of float's bytes
    mask: Tensor  # (H, W) uint8 class ids; IGNORE_ID for pixels that do not count
    pair: Tensor  # int64: index of the pair in its data set


@dataclass(eq=False, repr=False)
class SegmentationDataset(Dataset[Sample | UserError]):
    """Pairs of files as samples."""

    pairs: InitVar[Sequence[Pair]]
    labels: Labels  # map the masks' values to class ids
    image_format: ImageFormat  # of all images
    _: KW_ONLY
    scale: float  # images and masks are reduced to this fraction of their size
    augmentation: Augmentation | None = None  # None for the images as they are
    size: tuple[int, int] | None = None  # (height, width) that all samples must have; None for any
    resize_masks: bool = False  # to the size of their images
    cache: SampleCache | None = None  # keeps samples, decoded and scaled
    memory: SampleMemory | None = None  # as the cache, for this data set alone
    draw: ClassDraw | None = None  # of the image for each key; None for the image of its index

    def __post_init__(self, pairs: Sequence[Pair]) -> None:
        # Not a list: reading an object writes its reference count, which would copy the memory that
        # a reading process shares with its parent, page by page.
        self.paths: PackedPairs | NDArray[np.bytes_]
        self.stamps: NDArray[np.int64] | None = None  # (N, 2, 2) of objects, -1 for files
        if isinstance(pairs, PackedPairs):
            self.paths, self.is_remote = pairs, is_remote(pairs.pack.folder)
            return
        paths = [(os.fsencode(str(pair.image)), os.fsencode(str(pair.mask))) for pair in pairs]
        self.paths = np.array(paths, bytes)
        self.is_remote = any(is_remote(path) for pair in pairs for path in (pair.image, pair.mask))
        if self.is_remote:
            known = [[stamp or (-1, -1) for stamp in pair.stamps] for pair in pairs]
            self.stamps = np.array(known, np.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: Key) -> Sample | UserError:
        """Return the sample, or why it can't be read: a DataLoader would rewrite what is raised."""
        try:
            return self._sample(*key)
        except UserError as error:
            return error

    def _sample(self, epoch: int, index: int) -> Sample:
        own, drawn = self.draw(epoch, index) if self.draw else (index, None)
        paths = self._files(own)
        if self.cache is not None:
            stamps = self._stamps(own)
            image, mask = self.cache.load(*paths, lambda: self._decode(*paths), stamps)
        elif self.memory is not None:
            image, mask = self.memory.load(own, lambda: self._decode(*paths))
        else:
            image, mask = self._decode(*paths)
        if self.size is not None and image.shape[:2] != self.size:
            (height, width), (rows, columns) = image.shape[:2], self.size
            raise UserError(
                f"{paths[0]}: {width}x{height} pixels after scaling, the others "
                f"{columns}x{rows}; use --crop-size to train on crops of one size"
            )
        if self.augmentation is not None:
            image, mask = self.augmentation(image, mask, epoch=epoch, index=index, drawn=drawn)
        return Sample(
            torch.from_numpy(np.require(image, requirements=_WRITABLE)),
            torch.from_numpy(np.require(mask, requirements=_WRITABLE)),
            torch.tensor(own),
        )

    def _files(self, index: int) -> tuple[Path, Path]:
        if isinstance(self.paths, PackedPairs):
            pair = self.paths[index]
            return pair.image, pair.mask
        image, mask = self.paths[index]
        return as_path(os.fsdecode(image)), as_path(os.fsdecode(mask))

    def _stamps(self, index: int) -> Stamps:
        if isinstance(self.paths, PackedPairs):
            return self.paths[index].stamps
        if self.stamps is None:
            return None, None
        image, mask = (
            (size, changed) if size >= 0 else None for size, changed in self.stamps[index].tolist()
        )
        return image, mask

    def fetch(self, keys: Iterable[Key]) -> None:
        """Begin to read the objects of samples that are needed next, and drop those of others."""
        paths: list[Path] = []
        for epoch, place in keys:
            index = self.draw(epoch, place)[0] if self.draw else place
            files = self._files(index)
            with suppress(OSError):  # a missing file, which reading it will say
                if self.cache is None or not self.cache.path(*files, self._stamps(index)).exists():
                    paths += files
        hold(paths)

    def _decode(self, image_path: Path, mask_path: Path) -> Arrays:
        """Return image (H, W, C) and class ids (H, W) of two files, scaled."""
        with Source(image_path) as source:
            scale = source.find_scale(self.image_format, self.scale)
            image, nodata_mask = source.image(self.image_format, scale=scale)
        codes = self._read_codes(mask_path, image.shape[:2], scale)
        mask = self.labels.to_ids(codes, mask_path)  # after scaling: borders keep their width
        if nodata_mask is not None:
            mask[nodata_mask] = IGNORE_ID
        return image, mask

    def read_truth(self, index: int) -> NDArray[np.uint8]:
        """Return the class ids (H, W) of a pair at its image's own size, or raise a UserError.

        The image is decoded only if the data set has a no-data value.
        """
        image_path, mask_path = self._files(index)
        with Source(image_path) as source:
            ids = self.labels.to_ids(
                self._read_codes(mask_path, source.header.size, 1.0), mask_path
            )
            if self.image_format.nodata is not None:
                _, nodata_mask = source.image(self.image_format)
                ids[nodata_mask] = IGNORE_ID
        return ids

    def read_codes(self, index: int, size: tuple[int, int], scale: float) -> Codes:
        """Return the values (H, W) of a pair's mask at `scale`, which must have or get this size."""
        return self._read_codes(self._files(index)[1], size, scale)

    def _read_codes(self, path: Path, size: tuple[int, int], scale: float) -> Codes:
        """Return the values of a mask at `scale`, which must have or get this size."""
        codes = read_mask(path, scale=scale)
        if codes.shape == size:
            return codes
        if not self.resize_masks:
            raise UserError(mask_size_message(path, codes.shape, size))
        return cast(Codes, resize_nearest(codes, size))
