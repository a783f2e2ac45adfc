"""Decoded samples in memory, for sets that take little of it; what caches of files have in common."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Size
from unet_ddp.data.pairs import Pair
from unet_ddp.data.readers.base import ImageFormat, Pixels
from unet_ddp.distributed.hosts import host_id
from unet_ddp.distributed.world import World

UNUSED_DAYS = 30  # after which a file of a cache is removed
_HEADER = struct.Struct("<4Q")  # height, width, number of words, their sum; 0 for no sample yet


Arrays = tuple[Pixels, NDArray[Any]]
"""Image (H, W, C) and class ids (H, W), uint8 or, of more than 256, int16."""


class SampleStore(Protocol):
    """Samples of a data set, decoded and scaled."""

    def load(self, row: int, pair: Pair, decode: Callable[[Pair], Arrays]) -> Arrays:
        """Return the sample of a row, or decode and store it."""


class DiskStore(SampleStore, Protocol):
    """Samples in a folder."""

    folder: Path

    def holds(self, pair: Pair) -> bool:
        """Return whether the sample of a pair is there."""


def remove_unused(files: Iterable[Path]) -> None:
    """Remove files of a cache whose time, which is when they were last used, is `UNUSED_DAYS` ago."""
    oldest = time.time() - UNUSED_DAYS * 24 * 60 * 60
    for path in files:
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()


def id_bytes(num_ids: int) -> int:
    """Return the bytes of a class id, of which there are so many."""
    return 1 if num_ids <= 256 else 2


def unpack(stored: Any, image_format: ImageFormat, size: Size, first: int, num_ids: int) -> Arrays:
    """Return the sample of a size that is stored from the byte `first` on, image before mask."""
    pixels = size[0] * size[1]
    channels = image_format.channels
    image = np.frombuffer(stored, image_format.dtype, pixels * channels, first)
    kind = np.uint8 if id_bytes(num_ids) == 1 else np.int16
    ids = np.frombuffer(stored, kind, pixels, first + image.nbytes)
    return image.reshape(*size, channels), ids.reshape(size)


class SampleMemory:
    """Samples that are decoded and scaled once, shared by the ranks of a machine and what they fork.

    No locks are needed: a sample that another process is still writing does not have its sum yet, and is
    decoded again. Two that write the same sample write the same bytes.

    Args:
        memory: of `needed` bytes, all 0; see `share_memory`.
        image_format: of all images.
        pixels: of the largest image, after scaling.
        num_ids: of all classes.
    """

    def __init__(
        self, memory: mmap.mmap, image_format: ImageFormat, *, pixels: int, num_ids: int
    ) -> None:
        self._format, self._num_ids = image_format, num_ids
        self._slot = self.needed(1, image_format, pixels=pixels, num_ids=num_ids)
        self._memory = memory

    @staticmethod
    def needed(count: int, image_format: ImageFormat, *, pixels: int, num_ids: int) -> int:
        """Return the bytes that `count` samples of up to `pixels` need."""
        used = image_format.bytes_with_mask(1, pixels, id_bytes(num_ids)) + 7
        return count * (_HEADER.size + used // 8 * 8)  # whole words

    def load(self, row: int, pair: Pair, decode: Callable[[Pair], Arrays]) -> Arrays:
        """Return a copy of the sample, which is decoded the first time."""
        place = row * self._slot
        first = place + _HEADER.size
        height, width, count, total = _HEADER.unpack_from(self._memory, place)
        words = np.frombuffer(self._memory, np.uint64, count, first).copy()
        if count and words.sum() == total:  # modulo 2**64
            return unpack(words, self._format, (height, width), 0, self._num_ids)
        image, ids = decode(pair)
        stored = image.tobytes() + ids.tobytes()
        stored += bytes(-len(stored) % 8)
        if len(stored) <= self._slot - _HEADER.size:  # not a file that grew since the scan
            self._memory[first : first + len(stored)] = stored
            total = np.frombuffer(stored, np.uint64).sum()
            _HEADER.pack_into(self._memory, place, *ids.shape, len(stored) // 8, total)
        return image, ids


def share_memory(sizes: Sequence[int], world: World) -> list[mmap.mmap]:
    """Return memory of these sizes in bytes, each the same for all ranks of this machine.

    Every rank calls it; the `sizes` of the machine's first rank count. Without /proc, or in a
    container without the first rank, a rank has none. A page is taken when it is written, and freed when the last
    process that has it ends.
    """
    files = _make_files(sizes) if world.local_rank == 0 else []
    own = [f"/proc/{os.getpid()}/fd/{file}" for file in files]
    paths: list[str] = []
    for host, shared in world.gather((host_id(), own)):
        if host == host_id() and not paths:
            paths = shared
    found = []
    with suppress(OSError):  # this process may have less: ulimit -v
        for path in paths:
            with Path(path).open("r+b") as opened:
                found.append(mmap.mmap(opened.fileno(), 0))
    world.gather(None)  # all have opened them
    for file in files:
        os.close(file)
    return found if len(found) == len(paths) else []


def _make_files(sizes: Iterable[int]) -> list[int]:
    """Return open files in memory of these sizes; none of them if one can't be had."""
    files: list[int] = []
    try:
        for size in sizes:
            files.append(os.memfd_create("samples"))
            os.ftruncate(files[-1], size)
    except OSError:  # no files, no memory for them, or a limit of their size: ulimit -f
        while files:
            os.close(files.pop())
    return files
