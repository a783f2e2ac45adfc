"""Files with a line for each image of a job, to which several processes contribute."""

from __future__ import annotations

import fnmatch
import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any

from unet_ddp.data.masks import Mask, Shares
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.files import register_temporary, remove_temporary, replacing, write_errors
from unet_ddp.storage import Url, delete, list_objects, local_file, put

ADVICE = "make room, or name another file"


@dataclass(frozen=True)
class Listed:
    """One image, as lists describe it."""

    image: Path
    mask: Mask  # what its mask's file has (H, W)
    place: Any = None  # on a map; None if it has no coordinates
    uncertainty: float | None = None  # None without --rank, or if an earlier job wrote the mask
    extent: Shares | None = None  # see `Prediction`; None if an earlier job wrote the mask
    source: Source | None = None  # the image's file, if it is open


@dataclass(frozen=True)
class ListFile:
    """A file with a line for each image between a header and a footer."""

    path: Path
    format: Callable[[Listed], str]  # returns an image's line; empty for none
    header: bytes
    separator: bytes = b""  # between two images' lines, before the line break
    footer: bytes = b""

    def merge(self, size: int) -> None:
        """Write the file from the shards of all `size` processes."""
        with (
            write_errors(self.path, ADVICE),
            replacing(self.path) as temporary,
            temporary.open("wb") as file,
        ):
            file.write(self.header)
            self.write_lines(file, size)
            file.write(b"\n" + self.footer)

    def write_lines(self, file: IO[bytes], size: int) -> None:
        """Write the lines of all `size` processes, ordered by image."""
        separator = b"\n"
        for line in filter(None, read_shards(self.path, size)):
            file.write(separator + line)
            separator = self.separator + b"\n"


class ShardFile:
    """One process's lines for a list, in a temporary file next to it.

    The lines of a hundred thousand images need not fit into memory. For a list in storage, the file
    is in the system's temporary folder until `share` puts it next to the list.
    """

    def __init__(self, list_file: ListFile, rank: int) -> None:
        self.list_file = list_file
        self._shared = self._path = _shard_path(list_file.path, rank)
        if isinstance(self._shared, Url):
            name = f".{self._shared.name}.{os.getpid()}.{os.urandom(4).hex()}"
            self._path = Path(tempfile.gettempdir(), name)
        self._lock = Lock()
        register_temporary(self._path)
        with write_errors(list_file.path, ADVICE):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            self._file = self._path.open("xb")  # new: no link that somebody planted is followed

    def add(self, index: int, listed: Listed) -> None:
        """Add the line of the image at `index`, from any thread."""
        line = self.list_file.format(listed).encode("utf-8", "surrogateescape")
        with self._lock, write_errors(self.list_file.path, ADVICE):
            # With its length: names may contain line breaks.
            self._file.write(b"%d %d\n%s" % (index, len(line), line))
            self._file.flush()  # another process will read it

    def share(self) -> None:
        """Make the lines known to the process that merges them."""
        if isinstance(self._shared, Url):
            put(self._shared, self._path)

    def close(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # the disk is full, which `add` has said
            self._file.close()
        remove_temporary(self._path)
        if isinstance(self._shared, Url):
            with suppress(UserError):  # which the job has said
                delete(self._shared)


def read_shards(path: Path, size: int) -> Iterator[bytes]:
    """Yield the lines of all `size` processes' shards, ordered by image."""
    with ExitStack() as stack:
        shards = [stack.enter_context(local_file(_shard_path(path, rank))) for rank in range(size)]
        files = [stack.enter_context(shard.open("rb")) for shard in shards]
        lines: list[tuple[int, int, int, int]] = []  # index of the image, rank, offset, length
        for rank, file in enumerate(files):
            while header := file.readline():
                index, length = map(int, header.split())
                lines.append((index, rank, file.tell(), length))
                file.seek(length, os.SEEK_CUR)
        for _, rank, offset, length in sorted(lines):
            files[rank].seek(offset)
            yield files[rank].read(length)


def remove_stale_shards(path: Path) -> None:
    """Remove the shards that a killed job, perhaps of more processes, left of a list."""
    pattern = f".{glob.escape(path.name)}.*.part"
    if isinstance(path, Url):
        names = [name for name, _, _ in list_objects(path.parent, is_deep=False)]
        for name in fnmatch.filter(names, pattern):
            delete(path.parent / name)
    for shard in path.parent.glob(pattern):
        shard.unlink(missing_ok=True)


def _shard_path(path: Path, rank: int) -> Path:
    return path.with_name(f".{path.name}.{rank}.part")
