"""Decoded samples on disk, one uncompressed file each, shared by all processes and runs.

The operating system keeps the files in memory while it has space. A file's name is a digest of all
that its pixels depend on, and files are written whole or not at all. So no process waits for another,
and two that write the same sample write the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import struct
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unet_ddp.config import TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.memory import Arrays, id_bytes, remove_unused, unpack
from unet_ddp.data.pairs import Pair, find_stamp
from unet_ddp.data.readers.base import ImageFormat, Pixels
from unet_ddp.data.readers.read import READERS, describe_readers
from unet_ddp.distributed.world import World
from unet_ddp.files import cache_folder, complain, refuse_special, replacing

_HEADER = struct.Struct("<24s8s3Q8x")  # 64 bytes: magic, dtype, height, width, channels
_MAGIC = b"unet_ddp sample 1"
_DECODERS = ("pillow", "opencv-python-headless", "tifffile")
_RESERVED_BYTES, _RESERVED_SHARE = 10**9, 0.05  # of the disk; the smaller of the two stays free
_DAY = 24 * 60 * 60  # seconds


def open_cache(
    config: TrainConfig, labels: Labels, image_format: ImageFormat, world: World
) -> SampleCache | None:
    """Return the cache that --cache asks for; None if others may write to it."""
    warns = world.local_rank == 0
    folder = cache_folder(warns=warns)
    if folder is None:
        return None
    scale, resize = config.data.scale, config.data.resize_masks
    cache = SampleCache(folder, labels, image_format, scale=scale, resize_masks=resize, warns=warns)
    if warns:
        cache.remove_unused()
    return cache


class SampleCache:
    """Decoded and scaled samples in the user's cache folder.

    A file's modification time is, to the day, when the sample was last used.

    `folder` is the user's cache folder; the other arguments are as in `SegmentationDataset`. With
    `warns`, for one rank per machine, a line is printed if samples can't be written.
    """

    def __init__(
        self,
        folder: Path,
        labels: Labels,
        image_format: ImageFormat,
        *,
        scale: float,
        resize_masks: bool,
        warns: bool = True,
    ) -> None:
        self.folder = folder / "samples"
        self._format = image_format
        self._num_ids = labels.num_ids
        versions = [f"unet_ddp {READERS}"]
        for name in _DECODERS:  # another version may decode to other pixels
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions.append(f"{name} {metadata.version(name)}")
        self._options = f"{labels} {image_format} {scale} {resize_masks} {versions}"
        self.is_silent = torch.tensor(not warns)
        self.is_silent.share_memory_()  # type: ignore[no-untyped-call]  # by reading processes

    def load(self, row: int, pair: Pair, decode: Callable[[Pair], Arrays]) -> Arrays:
        """Return the sample of a pair from the cache, or decode and store it; see `path`."""
        try:
            path = self.path(pair)
        except OSError:
            return decode(pair)  # which names the missing file
        sample = self._read(path)
        if sample is None:
            sample = decode(pair)
            self._write(path, *sample)
        return sample

    def holds(self, pair: Pair) -> bool:
        """Return whether the sample of a pair is in the cache."""
        return self.path(pair).exists()

    def path(self, pair: Pair) -> Path:
        """Return the file of a sample; its name changes with its files and with every option.

        Stamps that the pair does not have are found now.
        """
        parts = [self._options, *describe_readers((pair.image, pair.mask))]
        for path, stamp in zip((pair.image, pair.mask), pair.stamps, strict=True):
            parts += [str(path.absolute()), *map(str, stamp or find_stamp(path))]
        return self.folder / hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()

    def remove_unused(self) -> None:
        """Remove the samples, of any data set, that were not used for a month."""
        with contextlib.suppress(OSError):  # no folder yet
            remove_unused(self.folder.iterdir())

    def _header(self, height: int, width: int) -> bytes:
        dtype = self._format.dtype.encode()
        return _HEADER.pack(_MAGIC, dtype, height, width, self._format.channels)

    def _read(self, path: Path) -> Arrays | None:
        """Map a sample into memory; None if the file is missing, corrupt or not ours.

        The mapping is private and writable: changing a pixel copies its page.
        """
        try:
            refuse_special(path)
            with path.open("rb") as file:
                stored = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                if time.time() - os.fstat(file.fileno()).st_mtime > _DAY:
                    with contextlib.suppress(OSError):  # a folder of another user
                        os.utime(path)
            _, _, height, width, _ = _HEADER.unpack_from(stored)
        except (OSError, ValueError, struct.error):  # ValueError: an empty file
            return None
        size = self._format.bytes_with_mask(height, width, id_bytes(self._num_ids)) + _HEADER.size
        if stored[: _HEADER.size] != self._header(height, width) or len(stored) != size:
            return None
        image, ids = unpack(
            stored, self._format, (height, width), _HEADER.size, num_ids=self._num_ids
        )
        if (ids[ids >= self._num_ids] != IGNORE_ID).any():
            return None
        return image, ids

    def _write(self, path: Path, image: Pixels, ids: NDArray[Any]) -> None:
        """Write a sample, if there is room."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            disk = shutil.disk_usage(self.folder)
            if disk.free < min(_RESERVED_BYTES, _RESERVED_SHARE * disk.total):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with replacing(path) as temporary, temporary.open("wb") as file:
                file.write(self._header(*ids.shape))
                file.write(np.ascontiguousarray(image).data)
                file.write(np.ascontiguousarray(ids).data)
        except OSError as error:
            if not self.is_silent:
                self.is_silent.fill_(True)
                complain(
                    f"--cache: {self.folder}: {error.strerror or error}; samples that it does not hold yet are "
                    "decoded each time"
                )
