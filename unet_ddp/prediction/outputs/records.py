"""Records of each image for the files of all images, from all processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, shorten
from unet_ddp.files import is_address, replacing, write_errors
from unet_ddp.prediction.existing import name_ways
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction

_LINE_ENDS = b",\r\n"
_ADVICE = "make room, or name another file"
PIECE = 1 << 20
"""Bytes that each process sends at a time."""
Span = tuple[int, int, int]  # index of an image, offset of its record, length


class Records:
    """One process's records of an output, in a temporary file without a name.

    Unless it `replaces` any file, an earlier file of all images is only replaced if all of its lines are in the new one.

    Records of a hundred thousand images need not fit into memory. They come to rank 0 through the
    process group, as several hosts may have no folder in common.
    """

    def __init__(self, output: Output, *, replaces: bool = True) -> None:
        assert output.path is not None
        self.output, self.path, self._replaces = output, output.path, replaces
        self.count = 0
        """Images with a record, of all processes; known on rank 0 after `merge`."""
        self._lock = Lock()
        self._spans: list[Span] = []
        self._end = 0
        self._files: list[IO[bytes]] = []  # this process's, and on rank 0 at the end the others'
        self._open()

    def _open(self) -> None:
        with write_errors(self.path, _ADVICE):
            folder = None
            if not is_address(self.path):
                folder = self.path.parent
                folder.mkdir(parents=True, exist_ok=True)
            self._files.append(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115

    def add(self, image: ImageFiles, prediction: Prediction) -> None:
        """Add the record of an image, if there is one, from any thread.

        Raises:
            UserError: the output, of a user's own, gives no text; or it can't be written.
        """
        record: object = self.output.record(image, prediction)
        if not isinstance(record, str):
            raise UserError(
                f'{self.output.flag}: record returned {shorten(record)}; return text, or "" for nothing'
            )
        content = record.encode("utf-8", "surrogateescape")
        if not content:
            return
        with self._lock, write_errors(self.path, _ADVICE):
            self._files[0].write(content)
            self._files[0].flush()
            self._spans.append((image.index, self._end, len(content)))
            self._end += len(content)

    def merge(self, world: World) -> None:
        """Write the file of all images, on rank 0."""
        self._files[0].seek(0)
        while True:
            pieces = world.gather(b"" if world.is_main else self._files[0].read(PIECE))
            if not any(pieces):
                break
            world.on_main(partial(self._keep, pieces))
        spans = world.gather(self._spans)
        self.count = sum(map(len, spans))
        world.on_main(lambda: self._write(MergedRecords(self._files, spans)))

    def _keep(self, pieces: Sequence[bytes]) -> None:
        while len(self._files) < len(pieces):
            self._open()
        with write_errors(self.path, _ADVICE):
            for file, piece in zip(self._files, pieces, strict=True):
                file.write(piece)

    def _write(self, records: MergedRecords) -> None:
        with (
            write_errors(self.path, _ADVICE),
            replacing(self.path) as temporary,
            temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        ):
            self.output.merge(records, file)
            file.flush()
            if not self._replaces and self.path.exists() and not _contains(temporary, self.path):
                raise UserError(
                    f"{self.path}: already exists, and has lines that the new one lacks; "
                    f"{name_ways(self.output.flag, skips=True)}"
                )

    def close(self) -> None:
        """Remove the files."""
        for file in self._files:
            with suppress(OSError):  # the disk is full, which `add` has said
                file.close()


def _contains(new: Path, old: Path) -> bool:
    """Return whether a file has all lines of another; commas at their ends do not count."""
    with new.open("rb") as file, old.open("rb") as old_file:
        known = {hash(line.rstrip(_LINE_ENDS)) for line in file}  # which may not fit into memory
        return all(hash(line.rstrip(_LINE_ENDS)) in known for line in old_file)


class MergedRecords:
    """The records of all processes, in the images' order."""

    def __init__(self, files: Sequence[IO[bytes]], spans: Sequence[Sequence[Span]]) -> None:
        self._files = files  # of each rank, as `spans`
        self._order = sorted((*span, rank) for rank, each in enumerate(spans) for span in each)

    def __iter__(self) -> Iterator[str]:
        for _, offset, length, rank in self._order:
            file = self._files[rank]
            file.seek(offset)
            yield file.read(length).decode("utf-8", "surrogateescape")
