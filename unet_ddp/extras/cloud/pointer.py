"""The checkpoints of a run in object storage, and the pointer to the last one.

A checkpoint is uploaded under a name that is never used again, last/000012-1a2b3c4d.pt, and so is the
best network so far, last/000012-5e6f7a8b.best.pt. Then last.json is uploaded, the pointer, which names
both and the checkpoint before. Each start of a run writes its token into the pointer, and from then on
replaces only the version that it knows. Of two starts that write, one wins, and the other one's objects
stay unnamed.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any

from unet_ddp.checkpoints.run_files import is_name_of_run
from unet_ddp.errors import Limit, UserError, from_plain
from unet_ddp.extras.cloud.clients import DeniedError
from unet_ddp.extras.cloud.objects import (
    Version,
    copy,
    delete,
    list_objects,
    put,
    read_chunks,
    read_version,
)
from unet_ddp.files.contents import LaterFormatError, check_format, describe_bytes, parse_json

COPIED = ("run.json", "learning_rate.csv", "best.pt", "metrics.csv")
"""Files that a run needs on another machine, besides its last.pt."""
FORMAT = 1  # of last.json
_KEPT = 2  # checkpoints
_CHUNK = 1 << 24  # bytes that are hashed at a time
_TO_TRAIN = "delete the run there, or choose another folder with --exp-name NAME"
_OWN = re.compile(r"\d{6}-[0-9a-f]{8}(\.best)?\.pt")  # other objects below last/ are the user's


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
    best: Saved | None = None  # the best network
    files: tuple[str, ...] = ()  # names that runs here have put
    is_replaced: bool = False  # by a run without a save here: saves and best are of the run before
    stale: tuple[str, ...] = ()  # objects of the run before, deleted after the first save
    format: Annotated[int, Limit(FORMAT, FORMAT)] = FORMAT


class NoPointerError(UserError):
    """A last.json that is no JSON: some servers answer each address with a page."""


class StoredRun:
    """A run at an address, as far as this process knows it; `advice` is for a corrupt pointer."""

    def __init__(self, address: Path, advice: str = _TO_TRAIN) -> None:
        self.address, self._advice = address, advice
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
            plain = parse_json(found[0].decode("utf-8-sig", "replace"), "a run's pointer")
            check_format(self._place, plain, FORMAT)
            return from_plain(Pointer, plain), found[1]
        except LaterFormatError:
            raise
        except UserError as error:
            is_json = describe_bytes(found[0]) == "a JSON file"
            kind = UserError if is_json else NoPointerError
            raise kind(f"{self._place}: corrupt ({error}); {self._advice}") from None

    def replace_pointer(self, pointer: Pointer) -> None:
        """Put a pointer in place of the one that is known.

        Raises:
            FileExistsError: another start has replaced it.
            UserError: it can't be put.
        """
        content = json.dumps(asdict(pointer), indent=1).encode()
        self._version = put(self._place, content, replaces=self._version or False)
        self.pointer = pointer

    def check_pointer(self) -> Pointer:
        """Return the pointer as it is there; a FileExistsError if another start has replaced it."""
        assert self.pointer is not None  # `replace_pointer` was called
        found = self._read()
        if found is None or found[0].token != self.pointer.token:
            raise FileExistsError(str(self._place))
        self.pointer, self._version = found  # one may be new, if the answer to its put was lost
        return self.pointer

    def path(self, saved: Saved) -> Path:
        """Return the address of a checkpoint."""
        return self.address / "last" / saved.name

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

    def record_files(self, names: Iterable[str]) -> None:
        """Write into the pointer that a run puts objects of these names, before it does.

        Raises:
            FileExistsError: another start has replaced the pointer.
            UserError: it can't be put.
        """
        assert self.pointer is not None  # `open` or `replace_pointer` was called
        names, known = set(names), self.pointer.files
        if names.issubset(known):
            return
        try:
            self.replace_pointer(replace(self.pointer, files=tuple(sorted(names.union(known)))))
        except FileExistsError:
            self.check_pointer()  # a command has recorded a file, too
            self.record_files(names)

    def put_save(self, last: IO[bytes] | None, best: IO[bytes] | None) -> None:
        """Put a checkpoint and the best network, then the pointer to both; None: as they are there.

        Checkpoints that the pointer does not name any more are deleted, and so are all objects of a run that this
        save replaces.

        Raises:
            FileExistsError: another start has replaced the pointer.
            UserError: they can't be put.
        """
        pointer = self.pointer
        assert pointer is not None  # `replace_pointer` was called
        saves, new_best = pointer.saves, pointer.best
        if pointer.is_replaced:
            saves, new_best = (), None
        newest = saves[0] if saves else None
        generation = 1 + (newest.generation if newest else 0)
        if best is not None:
            new_best = self._put_checkpoint(best, generation, ".best.pt", new_best)
        if last is not None:
            saved = self._put_checkpoint(last, generation, ".pt", newest)
            if saved is not newest:
                saves = (saved, *saves)[:_KEPT]
        if (saves, new_best) != (pointer.saves, pointer.best):
            new: dict[str, Any] = {"saves": saves, "best": new_best, "is_replaced": False}
            try:
                self.replace_pointer(replace(pointer, **new))
            except FileExistsError:
                pointer = self.check_pointer()  # a command has recorded a file
                self.replace_pointer(replace(pointer, **new))
            with suppress(UserError):  # what can't be deleted does no harm
                self._delete_unnamed()
        self.delete_stale()
        if best is not None and new_best is not None:
            self.record_files(["best.pt"])
            copy(self.path(new_best), self.address / "best.pt")  # for other programs

    def delete_stale(self) -> None:
        """Delete the objects of a run that another one has replaced, and take them out of the pointer.

        Raises:
            FileExistsError: another start has replaced the pointer.
            UserError: the pointer can't be put.
        """
        assert self.pointer is not None  # `replace_pointer` was called
        if self.pointer.is_replaced or not self.pointer.stale:
            return
        listed = [name for name, _, _ in list_objects(self.address, is_deep=False)]
        pointer = self.check_pointer()
        files = {*pointer.files} - {*pointer.stale}
        for name in {*filter(is_name_of_run, listed)} & {*pointer.stale}:
            try:
                delete(self.address / name)
            except UserError:  # it does no harm, and stays a run's
                files.add(name)
        self.replace_pointer(replace(pointer, files=tuple(sorted(files)), stale=()))

    def _put_checkpoint(
        self, file: IO[bytes], generation: int, suffix: str, known: Saved | None
    ) -> Saved:
        """Put a checkpoint under a new name, unless it is the one that is known."""
        sha256 = hash_file(file)
        if known is not None and known.sha256 == sha256:
            return known
        # Not the start's token: a put that was given up may still arrive, after the one that is named.
        name = f"{generation:06d}-{secrets.token_hex(4)}{suffix}"
        saved = Saved(name, generation, sha256, file.tell())
        put(self.path(saved), file)
        return saved

    def _delete_unnamed(self) -> None:
        assert self.pointer is not None
        listed = [name for name, _, _ in list_objects(self.address / "last", is_deep=False)]
        self.check_pointer()  # after the listing: it has nothing that a later owner put
        named = {each.name for each in (*self.pointer.saves, self.pointer.best) if each}
        for name in listed:
            if _OWN.fullmatch(name) and name not in named:
                delete(self.address / "last" / name)


def hash_file(file: IO[bytes]) -> str:
    """Return the SHA-256 of an open file, read from where it is to its end."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def find_newest(path: Path) -> Path:
    """Return the object that `path` means: of a run's last.pt and best.pt those that it put last.

    Raises:
        UserError: the pointer can't be read.
    """
    if path.name not in ("last.pt", "best.pt"):
        return path
    run = StoredRun(path.parent, f"name a file in {path.parent / 'last'} instead")
    try:
        pointer = run.open()
    except (NoPointerError, DeniedError):  # the file itself tells
        pointer = None
    if pointer is None:
        return path
    saved = next(iter(pointer.saves), None) if path.name == "last.pt" else pointer.best
    return run.path(saved) if saved else path
