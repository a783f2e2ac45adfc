"""Samples as they come from the reader, in one file that all processes of a machine map.

A slot of the file holds an image (H, W, C) and its class ids (H, W), decoded and scaled. It is
filled when its pair is read for the first time, by whichever process that is: two that fill one at
once write the same bytes, and a slot counts from the moment its number in the table is written,
which is after its pixels. So a kill at any time leaves slots that are whole, and empty ones.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats.header import ImageFormat, Pixels
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair
from unet_ddp.files import cache_folder

_MAGIC = b"unet_ddp samples 1\n"
_HEAD = 4096  # bytes; the last one says that the disk was found full
_ALIGNED = 64
_MEMORY = Path("/dev/shm")
_DECODERS = ("pillow", "opencv-python-headless", "tifffile")


@dataclass(frozen=True)
class Contents:
    """What a cache is to hold, and so whether one that is there can be believed.

    Args:
        pairs: training and validation pairs.
        sizes: (height, width) of each, scaled.
        scale, resize_masks: as `SegmentationDataset` has them.
    """

    pairs: list[Pair]
    sizes: list[tuple[int, int]]
    labels: Labels
    format: ImageFormat
    scale: float
    resize_masks: bool

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each slot ends, counted from the first one's beginning."""
        whole = np.array([self.format.bytes_with_mask(*size) for size in self.sizes], np.int64)
        return np.cumsum(-(-whole // _ALIGNED) * _ALIGNED)

    def place(self) -> str:
        """A name for the data set read in this way, whatever its files hold."""
        return _digest([self._way(), *(str(pair.image.absolute()) for pair in self.pairs)])[:16]

    def digest(self) -> str:
        """A name that changes with every file, as far as size and time tell, and every setting."""
        files = (f"{_state(pair.image)} {_state(pair.mask)}" for pair in self.pairs)
        return _digest([self._way(), str(self.sizes), *files])

    def _way(self) -> str:
        versions = []
        for name in _DECODERS:  # another one may give other pixels
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions.append(f"{name} {metadata.version(name)}")
        return f"{self.labels} {self.format} {self.scale} {self.resize_masks} {versions}"


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogateescape")).hexdigest()


def _state(path: Path) -> str:
    try:
        status = path.stat()
        return f"{path} {status.st_size} {status.st_mtime_ns}"
    except OSError:
        return f"{path} -"


class SampleCache:
    """The slots of a data set; see the module.

    Args:
        path: a file that `open_cache` has made.
        contents: what it is to hold.
        count: how many pairs have a slot; the first ones.
    """

    def __init__(self, path: Path, contents: Contents, count: int) -> None:
        self.path = path
        self.contents = contents
        self.count = count
        self.numbers = {pair.name: number for number, pair in enumerate(contents.pairs)}
        self.starts = np.concatenate([[0], contents.ends[:count]])
        self._map_file()

    def _map_file(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._bytes = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        self._table = np.frombuffer(self._bytes, np.int64, self.count, _HEAD)
        self._first = _first_slot(self.count)

    def __getstate__(self) -> dict[str, Any]:
        """For reading processes that are not forked: they open the file again."""
        names = ("path", "contents", "count", "numbers", "starts")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map_file()

    def slots(self, pairs: list[Pair]) -> NDArray[np.int64]:
        """The slot of each pair; -1 for none."""
        found = np.array([self.numbers.get(pair.name, -1) for pair in pairs], np.int64)
        return np.where(found < self.count, found, -1)

    @property
    def filled(self) -> int:
        """How many slots are."""
        return int(np.count_nonzero(self._table))

    def get(self, slot: int) -> tuple[Pixels, NDArray[np.uint8]] | None:
        """Image (H, W, C) and class ids (H, W), not to be written to; None where there are none."""
        entry = int(self._table[slot]) if slot >= 0 else 0
        if entry == 0:
            return None
        height, width = divmod(entry, 1 << 32)
        channels, dtype = self.contents.format.channels, np.dtype(self.contents.format.dtype)
        start, pixels = self._first + int(self.starts[slot]), height * width
        image = np.frombuffer(self._bytes, dtype, pixels * channels, start)
        ids = np.frombuffer(self._bytes, np.uint8, pixels, start + image.nbytes)
        return image.reshape(height, width, channels), ids.reshape(height, width)

    def put(self, slot: int, image: Pixels, ids: NDArray[np.uint8]) -> None:
        """Fill a slot, if there is one and the sample is of the size that was expected."""
        if slot < 0 or self._bytes[_HEAD - 1]:
            return
        start, end = int(self.starts[slot]), int(self.starts[slot + 1])
        if not 0 <= end - start - image.nbytes - ids.nbytes < _ALIGNED:
            return
        height, width = ids.shape
        try:
            _write(self._file, np.ascontiguousarray(image).data.cast("B"), self._first + start)
            end = self._first + start + image.nbytes
            _write(self._file, np.ascontiguousarray(ids).data.cast("B"), end)
            entry = np.int64((height << 32) + width)
            _write(self._file, entry.tobytes(), _HEAD + 8 * slot)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Fill no more slots, in any process; the first of them says so."""
        if not self._bytes[_HEAD - 1]:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, b"\1", _HEAD - 1)
            print(
                f"warning: {self.path}: {error.strerror}; the pairs that are not in it yet are read "
                "each time",
                file=sys.stderr,
                flush=True,
            )

    def flush(self) -> None:
        """Make sure, once all slots are filled, that they survive a power cut, and note it."""
        note = _read_note(self._file)
        if self.filled == self.count and note and not note["flushed"]:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
                _note(self._file, {**note, "flushed": True})


def _first_slot(count: int) -> int:
    return -(-(_HEAD + 8 * count) // _HEAD) * _HEAD


def _write(file: int, data: Any, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _note(file: int, note: Mapping[str, Any]) -> None:
    """Write the header, whose last byte is left as it is."""
    text = _MAGIC + json.dumps(note).encode()
    _write(file, text.ljust(_HEAD - 1), 0)


def _read_note(file: int) -> dict[str, Any]:
    """What a header says; nothing for one of another kind."""
    head = os.pread(file, _HEAD - 1, 0)
    if not head.startswith(_MAGIC):
        return {}
    try:
        note = json.loads(head[len(_MAGIC) :])
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


# -- opening and making ---------------------------------------------------------------------


def open_cache(
    kind: str, contents: Contents, *, limit: int | None, memory: int | None, token: str
) -> tuple[SampleCache, str]:
    """The cache of a data set on this machine, made where there is none that can be believed.

    Args:
        kind: disk or ram.
        limit: bytes; half of what is free when absent, and of memory never more than that.
        memory: bytes that the machine has to give, where it is known.
        token: names the cache in memory, alike on all processes of the run; `forget` it when all
            have opened it.

    Returns:
        The cache, and a line about it.

    Raises:
        OSError: it can't be made here.
    """
    folder = cache_folder() if kind == "disk" else _MEMORY
    name = contents.place() if kind == "disk" else token
    path = folder / f"unet_ddp-samples-{name}.bin"
    if kind == "disk":
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise OSError(errno.ENOENT, "this system has no memory that processes share by name")
    digest = contents.digest()
    with _alone(path, lasting=kind == "disk"):
        count, why = _count_sound(path, contents, digest, limit)
        if count == 0:
            path.unlink(missing_ok=True)
            free = shutil.disk_usage(folder).free
            room = (free if kind == "disk" or memory is None else min(free, memory)) // 2
            if limit is not None:  # batches from reading processes are in the same memory
                room = limit if kind == "disk" else min(limit, free // 2)
            count = _make(path, contents, digest, room, kind)
        cache = SampleCache(path, contents, count)
    return cache, _describe(cache, kind, why)


def forget(cache: SampleCache) -> None:
    """Take a cache in memory its name, so that it ends with the last process that has it open."""
    cache.path.unlink(missing_ok=True)
    _lock_of(cache.path).unlink(missing_ok=True)


def _count_sound(path: Path, contents: Contents, digest: str, limit: int | None) -> tuple[int, str]:
    """How many slots the file has, if it can be believed; else 0, and why it can't."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return 0, ""
    try:
        note, size = _read_note(file), os.fstat(file).st_size
        count = int(note.get("count", 0))
        if not note:
            return 0, "the one there is of another version"
        if note.get("digest") != digest or not 0 < count <= len(contents.pairs):
            return 0, "files or settings have changed"
        if size != _first_slot(count) + int(contents.ends[count - 1]):
            return 0, "the one there is cut short"
        if note.get("boot") != _boot() and not note.get("flushed"):
            return 0, "the machine went down while the one there was filled"
        if limit is not None and size > limit:
            return 0, "the one there is above --cache-limit"
        os.pwrite(file, b"\0", _HEAD - 1)  # there may be room again
        return count, ""
    finally:
        os.close(file)


def _make(path: Path, contents: Contents, digest: str, room: int, kind: str) -> int:
    """An empty cache at `path` for as many pairs as have room; their number."""
    ends = contents.ends
    count = int(np.searchsorted(ends + _first_slot(len(ends)), room, side="right"))
    if count == 0:
        needed = (_first_slot(len(ends)) + int(ends[-1])) / 1e9
        raise OSError(
            errno.ENOSPC,
            f"{needed:.2g} GB would be needed, and {max(0, room) / 1e9:.2g} GB may be taken",
        )
    half, size = path.with_suffix(".tmp"), _first_slot(count) + int(ends[count - 1])
    file = os.open(half, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.ftruncate(file, size)  # zeros: all slots are empty
        if kind == "disk":  # now rather than in mid-run; memory is taken as it is filled
            _reserve(file, size)
        _note(file, {"digest": digest, "count": count, "boot": _boot(), "flushed": False})
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        reason = f"{size / 1e9:.2g} GB: {error.strerror}"
        raise OSError(error.errno, reason, str(path.parent)) from None
    finally:
        os.close(file)
    return count


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:  # file systems that can't: then a full disk is met when it is full
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise


def _describe(cache: SampleCache, kind: str, why: str) -> str:
    """A line for the user."""
    count, whole, filled = cache.count, len(cache.contents.pairs), cache.filled
    size = (_first_slot(count) + int(cache.contents.ends[count - 1])) / 1e9
    where = f"in {cache.path}" if kind == "disk" else "in memory"
    line = f"cache: {count} pairs, {size:.2g} GB {where}, "
    line += f"{filled} of them there already" if filled else "filled as they are read"
    if count < whole:
        line += f"; there is no room for the other {whole - count} (see --cache-limit)"
    return line + (f"; made anew: {why}" if why else "")


def _boot() -> str:
    """Names the time since the machine was started: what was written in it is in its memory."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")


@contextlib.contextmanager
def _alone(path: Path, *, lasting: bool) -> Iterator[None]:
    """Within it, no other process makes or judges the cache; a killed one lets go.

    Args:
        lasting: whether the lock's file stays where the cache could not be made.
    """
    import fcntl

    with _lock_of(path).open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        except OSError:
            if not lasting:
                _lock_of(path).unlink(missing_ok=True)
            raise
