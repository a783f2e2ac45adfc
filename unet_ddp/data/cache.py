"""Decoded samples on disk, one uncompressed file each, shared by all processes and runs.

The operating system keeps the files in memory as long as it has room. A file's name is a digest of
all that its pixels depend on, and files are written whole or not at all: no process waits for
another, and two that write the same sample write the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import struct
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unet_ddp.data.formats.header import ImageFormat, Pixels
from unet_ddp.data.labels import Labels
from unet_ddp.files import cache_folder, replacing

Arrays = tuple[Pixels, NDArray[np.uint8]]
"""Image (H, W, C) and class ids (H, W)."""

_MAGIC = b"unet_ddp sample 2"
_HEADER = struct.Struct("<24s8s3Q8x")  # magic, dtype, height, width, channels: 64 bytes
_DECODERS = ("pillow", "opencv-python-headless", "tifffile")
_RESERVE, _RESERVED_SHARE = 10**9, 0.05  # of the disk stay free: the smaller of the two, in bytes
_DAY = 24 * 60 * 60  # seconds
UNUSED_DAYS = 30


class SampleCache:
    """Decoded and scaled samples in the user's cache folder.

    A file's modification time says, to the day, when it was last used.

    Args:
        labels, image_format, scale, resize_masks: as `SegmentationDataset` has them.
        warns: print a line when the first sample can't be written; for one rank per machine.
    """

    def __init__(
        self,
        labels: Labels,
        image_format: ImageFormat,
        *,
        scale: float,
        resize_masks: bool,
        warns: bool = True,
    ) -> None:
        self.folder = cache_folder() / "samples"
        self.format = image_format
        versions = []
        for name in _DECODERS:  # another version may decode to other pixels
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions.append(f"{name} {metadata.version(name)}")
        self._options = f"{labels} {image_format} {scale} {resize_masks} {versions}"
        self._warned = torch.tensor(not warns)
        self._warned.share_memory_()  # type: ignore[no-untyped-call]  # by all reading processes

    def load(self, image: Path, mask: Path, decode: Callable[[], Arrays]) -> Arrays:
        """Return the sample of two files from the cache; decode and keep it if it is not there."""
        try:
            path = self.path(image, mask)
        except OSError:  # decoding names the file that is missing
            return decode()
        sample = self._read(path)
        if sample is None:
            sample = decode()
            self._write(path, *sample)
        return sample

    def path(self, image: Path, mask: Path) -> Path:
        """Return the file of a sample, whose name changes with the files and with every option.

        Raises:
            OSError: the image or its mask does not exist.
        """
        parts = [self._options]
        for path in (image, mask):
            status = path.stat()
            parts += [str(path.absolute()), str(status.st_size), str(status.st_mtime_ns)]
        return self.folder / hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()

    def _read(self, path: Path) -> Arrays | None:
        """Map a sample into memory; None if there is no such file, or none of ours and whole.

        The mapping is private: who changes the pixels changes a copy of a page.
        """
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                status = os.fstat(file)
                stored = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
                if time.time() - status.st_mtime > _DAY:
                    with contextlib.suppress(OSError):  # a folder of another user
                        os.utime(path)
            finally:
                os.close(file)
        except (OSError, ValueError):  # ValueError: an empty file
            return None
        if len(stored) < _HEADER.size:
            return None
        magic, name, height, width, channels = _HEADER.unpack_from(stored)
        dtype = np.dtype(self.format.dtype)
        size = _HEADER.size + self.format.bytes_with_mask(height, width)
        found = magic.rstrip(b"\0"), name.rstrip(b"\0").decode("latin1"), channels, len(stored)
        if found != (_MAGIC, self.format.dtype, self.format.channels, size):
            return None
        image = np.frombuffer(stored, dtype, height * width * channels, _HEADER.size)
        ids = np.frombuffer(stored, np.uint8, height * width, _HEADER.size + image.nbytes)
        return image.reshape(height, width, channels), ids.reshape(height, width)

    def _write(self, path: Path, image: Pixels, ids: NDArray[np.uint8]) -> None:
        """Write a sample, if there is room; a failure is one warning, and the sample is decoded again."""
        header = _HEADER.pack(_MAGIC, image.dtype.name.encode(), *image.shape)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            disk = shutil.disk_usage(self.folder)
            if disk.free < min(_RESERVE, _RESERVED_SHARE * disk.total):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with replacing(path) as temporary, temporary.open("wb") as file:
                file.write(header)
                file.write(np.ascontiguousarray(image).data)
                file.write(np.ascontiguousarray(ids).data)
        except OSError as error:
            if not self._warned:
                self._warned.fill_(True)
                print(
                    f"warning: --cache: {self.folder}: {error.strerror}; samples that are not in it "
                    "are decoded each time",
                    file=sys.stderr,
                    flush=True,
                )

    def remove_unused(self) -> None:
        """Remove the samples, of any data set, that were not used for `UNUSED_DAYS`."""
        oldest = time.time() - UNUSED_DAYS * _DAY
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat().st_mtime < oldest:
                        Path(entry.path).unlink()
