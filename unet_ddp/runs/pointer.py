"""The checkpoints of a run in object storage, and the pointer to the last one.

A checkpoint is put under a name that is never used again, last/000012-1a2b3c4d.pt; then last.json,
the pointer, which names it and the one before. Each start of a run writes its token into the pointer
and from then on replaces only the version that it knows: of two starts that write, one wins.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from unet_ddp.data.columns import hash_file
from unet_ddp.errors import UserError, from_plain
from unet_ddp.storage import Url, Version, delete, list_objects, put, read_chunks, read_version

_KEPT = 2  # checkpoints


@dataclass(frozen=True)
class Saved:
    """A checkpoint in storage."""

    name: str  # of the object below last/
    generation: int  # number of the save, from 1
    sha256: str
    size: int


@dataclass(frozen=True)
class Pointer:
    """The content of last.json."""

    token: str  # of the start that may replace it
    launch: str | None  # the name of its torchrun, if it has one
    saves: tuple[Saved, ...] = ()  # the newest first


class StoredRun:
    """A run at an address, as far as this process knows it."""

    def __init__(self, address: Url) -> None:
        self.address = address
        self.pointer: Pointer | None = None
        """None if there is no run."""
        self._place = address / "last.json"
        self._version = Version()  # of the pointer

    def open(self) -> Pointer | None:
        """Read the pointer and return it; None if there is no run.

        Raises:
            UserError: it can't be read, or is corrupt.
        """
        found = self._read()
        if found is not None:
            self.pointer, self._version = found
        return self.pointer

    def _read(self) -> tuple[Pointer, Version] | None:
        found = read_version(self._place)
        if found is None:
            return None
        try:
            return from_plain(Pointer, json.loads(found[0])), found[1]
        except (ValueError, RecursionError) as error:  # UserError and what json raises
            raise UserError(
                f"{self._place}: corrupt ({error}); delete it, and use --overwrite"
            ) from None

    def replace_pointer(self, pointer: Pointer) -> None:
        """Put a pointer in place of the one that is known.

        Raises:
            FileExistsError: another start has replaced it.
            UserError: it can't be put.
        """
        content = json.dumps(asdict(pointer), indent=1).encode()
        self._version = put(self._place, content, replaces=self._version or False)
        self.pointer = pointer

    def check_pointer(self) -> None:
        """Raise a FileExistsError if another start has replaced the pointer."""
        assert self.pointer is not None  # `replace_pointer` was called
        found = self._read()
        if found is None or found[0].token != self.pointer.token:
            raise FileExistsError(str(self._place))
        self.pointer, self._version = found  # one may be new, if the answer to its put was lost

    def path(self, saved: Saved) -> Url:
        """Return the address of a checkpoint."""
        path: Url = self.address / "last" / saved.name
        return path

    def download(self, saved: Saved, to: Path) -> None:
        """Write a checkpoint to a file.

        Raises:
            UserError: it can't be read, or is not what was put.
            OSError: the file can't be written.
        """
        digest = hashlib.sha256()
        with to.open("wb") as file:
            for chunk in read_chunks(self.path(saved)):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != saved.sha256:
            raise UserError(
                f"{self.path(saved)}: corrupt: its SHA-256 is {digest.hexdigest()[:12]}…, in last.json "
                f"{saved.sha256[:12]}…"
            )

    def put_last(self, file: IO[bytes]) -> None:
        """Put a checkpoint and then its pointer, and delete the checkpoints that it does not name.

        Raises:
            FileExistsError: another start has replaced the pointer.
            UserError: the checkpoint can't be put.
        """
        assert self.pointer is not None  # `replace_pointer` was called
        token, saves = self.pointer.token, self.pointer.saves
        sha256 = hash_file(file)
        if saves and saves[0].sha256 == sha256:
            return
        generation = saves[0].generation + 1 if saves else 1
        saved = Saved(f"{generation:06d}-{token}.pt", generation, sha256, file.tell())
        put(self.path(saved), file)
        saves = (saved, *saves)[:_KEPT]
        self.replace_pointer(Pointer(token, self.pointer.launch, saves))
        names = {each.name for each in saves}
        with suppress(UserError):  # what can't be deleted does no harm
            for name, _, _ in list(list_objects(self.address / "last")):
                if name not in names:
                    delete(self.address / "last" / name)


def find_newest(path: Url) -> Url:
    """Return the object that `path` means: of a run's last.pt the newest checkpoint.

    Raises:
        UserError: the pointer can't be read.
    """
    run = StoredRun(path.parent)
    pointer = run.open() if path.name == "last.pt" else None
    return run.path(pointer.saves[0]) if pointer and pointer.saves else path
