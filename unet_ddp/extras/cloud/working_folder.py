"""The working folder of a run at an address, brought to the state in storage."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from unet_ddp.checkpoints.file import load
from unet_ddp.checkpoints.run_files import find_files, is_name_of_run, may_write
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud.clients import StorageError
from unet_ddp.extras.cloud.objects import list_objects, read_chunks
from unet_ddp.extras.cloud.pointer import COPIED, Pointer, StoredRun, hash_file
from unet_ddp.files import replacing, write_errors, write_text
from unet_ddp.runs.mirror import Mirror
from unet_ddp.runs.recovery import contains_a_run
from unet_ddp.runs.resume import StartPoint

MAKE_ROOM = "make room, or name another folder with XDG_CACHE_HOME"

Stamp = tuple[int, int, int]


class WorkingFolder(Mirror):
    """The folder of this machine for a run at an address, until the run is claimed.

    Args:
        config: names the address.
        log: prints a line.
    """

    def __init__(self, config: TrainConfig, log: Callable[[str], None]) -> None:
        self.run = StoredRun(config.address)
        self.path = config.folder
        self.last = self.path / "last.pt"
        self.stored_file = self.path / ".stored"  # the SHA-256 of last.pt as it was put last
        self.stamps: dict[str, Stamp] = {}  # of the files as they were put
        self.log = log
        self._config = config
        self._launchers: Sequence[str] = ()
        self._tokens = [secrets.token_hex(4)]  # of this start, and of the one that it continues
        self._token_file = self.path / ".token"  # of the starts that used this folder last
        self._found = Pointer("", None)  # its saves from the one on that the run resumes

    def open(self, launchers: Sequence[str]) -> None:
        """Bring the folder to the state in storage unless it has a newer one; see `Mirror.open`."""
        self._launchers = launchers
        launch, address = self._config.launch, self.run.address
        pointer = self.run.open()
        names = {name for name, _, _ in list_objects(address, is_deep=False)}
        self._check_free(names)
        if pointer is None:
            if launch.resume is not None and not self.last.is_file():
                raise UserError(
                    f"{address}: no run to resume; start a new one without --resume, or name it with "
                    "--exp-name"
                )
            return
        self._found = pointer
        if not pointer.is_replaced:
            names -= {*pointer.stale}
        tokens = self._token_file.read_text().split() if self._token_file.is_file() else []
        is_own = pointer.token in tokens
        if is_own:  # and stays so if this start can't replace the pointer
            self._tokens.append(pointer.token)
        begun_by = set((pointer.launch or "").splitlines())
        is_restart = not begun_by.isdisjoint(launchers)
        if launch.resume is None and not is_restart:
            if not launch.overwrite and (pointer.saves or not is_own):
                raise contains_a_run(address, [address / "last.json"])
        elif is_own and self._is_current():
            pass
        elif pointer.saves and not (pointer.is_replaced and launch.resume is None):
            with write_errors(self.path, MAKE_ROOM):
                self._download(names)
        elif launch.resume is not None:
            raise UserError(f"{address}: no checkpoint was saved; start again with --overwrite")
        file = self._config.resume_file.name
        if launch.resume is not None and not (self.path / file).is_file():
            self._copy({file} & names)

    def claim(self, start: StartPoint) -> None:
        """Make this start the one that may write at the address; see `Mirror.claim`."""
        address = self.run.address
        with write_errors(self.path, MAKE_ROOM):
            write_text(self._token_file, "\n".join(self._tokens))
        how: dict[str, Any] = {}
        if start.is_new:
            how = {"is_replaced": bool(self._found.saves), "stale": self._found.files}
        elif self._found.is_replaced and self._has_newest():  # the run before comes back
            how = {"is_replaced": False, "stale": ()}
        launch = "\n".join(self._launchers)
        pointer = replace(self._found, token=self._tokens[0], launch=launch, **how)
        try:
            self.run.replace_pointer(pointer)
        except FileExistsError:
            raise UserError(
                f"{address}: another run has begun or continued there at this moment; choose another "
                "folder with --exp-name NAME, or stop it and use --resume"
            ) from None
        if start.is_new:
            self._keep_unsaved()
        self.log(f"{address}: put from {self.path} after each save")

    def _check_free(self, names: set[str]) -> None:
        """Find which objects runs have put here, and check that no other one is in their way."""
        known = self.run.pointer.files if self.run.pointer else ()
        for name in sorted({*filter(is_name_of_run, names)} - {*known}):
            # The settings of a run that is resumed are not known yet.
            is_kept = name.startswith("epoch_") and self._config.launch.resume is not None
            if is_kept or may_write(self._config, name):
                raise UserError(
                    f"{self.run.address / name}: not of the run, which would replace it: rename it"
                )

    def _is_current(self) -> bool:
        """Return whether the working folder has the state in storage, or a newer one."""
        if not self.last.is_file():
            return False
        newest = next(iter(self._found.saves), None)
        if self._has_newest():
            return True
        try:
            load(self.last)
        except UserError as error:
            if newest is not None:
                self.log(f"warning: {error}; using {self.run.path(newest)} instead")
            return newest is None
        self.log(f"{self.last} is newer than what {self.run.address} has: it is used")
        return True

    def _has_newest(self) -> bool:
        """Return whether last.pt is the newest save in storage."""
        if not self._found.saves:
            return False
        with self.last.open("rb") as last:
            return hash_file(last) == self._found.saves[0].sha256

    def _download(self, names: set[str]) -> None:
        """Replace the run in the working folder by the one in storage; last.pt is there at the end."""
        with replacing(self.last) as temporary:
            self._download_newest(temporary)
            self._keep_unsaved()
            for path in find_files(self.path):
                path.unlink()
            self._copy({*COPIED} & names - {"best.pt"})
            try:
                self._copy({"best.pt"} if self._found.best else set())
            except StorageError:
                raise
            except UserError as error:
                self.log(f"warning: {error}; the run goes on without it")
        write_text(self.stored_file, self._found.saves[0].sha256)
        self.log(
            f"{self.run.address}: save {self._found.saves[0].generation} copied to {self.path}"
        )

    def _download_newest(self, to: Path) -> None:
        """Write the newest checkpoint in storage that is not corrupt to a file."""
        errors = []
        for place, saved in enumerate(self._found.saves):
            try:
                self.run.download(saved, to)
            except StorageError:  # a later start may find this one: it does not go back
                raise
            except UserError as error:
                errors.append(str(error))
                continue
            self._found = replace(self._found, saves=self._found.saves[place:])
            for text in errors:
                self.log(f"warning: {text}; using {self.run.path(saved)} instead")
            return
        raise UserError(errors[0])

    def _copy(self, names: set[str]) -> None:
        """Copy files from storage, which need not be put again."""
        for name in names:
            saved = self._found.best if name == "best.pt" else None
            with replacing(self.path / name) as temporary:
                if saved is not None:
                    self.run.download(saved, temporary)
                    continue
                with temporary.open("wb") as file:
                    file.writelines(read_chunks(self.run.address / name))
            self.stamps[name] = stamp_of((self.path / name).stat())

    def find_files(self) -> list[Path]:
        """Return the run's files on this machine that storage has, too."""
        return [path for path in find_files(self.path) if path.parent == self.path]

    def _keep_unsaved(self) -> None:
        """Move the run in the working folder aside if its last state was never put."""
        if not self.last.is_file():
            return
        with self.last.open("rb") as file:
            digest = hash_file(file)
        if self.stored_file.is_file() and self.stored_file.read_text() == digest:
            return
        places = (self.path / f"kept-{number}" for number in count(1))
        aside = next(place for place in places if not place.exists())
        aside.mkdir()
        for path in sorted(self.find_files(), key=lambda path: path == self.last):  # a kill: again
            path.rename(aside / path.name)
        self.log(
            f"{aside} has the files that were here, whose last.pt {self.run.address} never had"
        )


def stamp_of(status: os.stat_result) -> Stamp:
    """Return what changes when a file does."""
    return status.st_ino, status.st_size, status.st_mtime_ns
