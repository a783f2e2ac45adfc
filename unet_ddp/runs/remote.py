"""The folder of a run at an address: on this machine as any other, and put from there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunningError
from contextlib import suppress
from pathlib import Path
from typing import IO

from unet_ddp.config import TrainConfig
from unet_ddp.data.checks.check import PreparedData
from unet_ddp.data.columns import hash_file
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.files import replacing, write_errors, write_text
from unet_ddp.runs.checkpoint import Content
from unet_ddp.runs.folder import RunFolder, contains_a_run
from unet_ddp.runs.hosts import COPIED
from unet_ddp.runs.owned import delete_owned, find_owned, is_name_of_run
from unet_ddp.runs.pointer import Pointer, Saved, StoredRun
from unet_ddp.runs.resume import Resumed
from unet_ddp.storage import Url, delete, list_objects, put, read_chunks
from unet_ddp.training.state import TrainState

_SOON = 2.0  # seconds; a longer wait for storage is said
_MAKE_ROOM = "make room, or name another folder with XDG_CACHE_HOME"

Stamp = tuple[int, int, int]


def choose_folder(config: TrainConfig, world: World, log: Callable[[str], None]) -> RunFolder:
    """Return the folder of a run, on this machine or at an address."""
    kind = RemoteRunFolder if isinstance(config.place, Url) else RunFolder
    return kind(config, world, log)


class RemoteRunFolder(RunFolder):
    """The working folder of a run at an address, and what puts its files there.

    A thread puts what has changed after each save, and at the end: training never waits for it. A
    checkpoint that can't be put is a warning, and the next save tries again.
    """

    def __init__(self, config: TrainConfig, world: World, log: Callable[[str], None]) -> None:
        super().__init__(config, world, log)
        assert isinstance(config.place, Url)
        self._run = StoredRun(config.place)
        self._tokens = [secrets.token_hex(4)]  # of this start, and of the one that it continues
        self._token_file = self.path / ".token"  # of the starts that used this folder last
        self._saves: tuple[Saved, ...] = ()  # in storage, from the one on that the run resumes
        self._stamps: dict[str, Stamp] = {}  # of the files as they were put
        self._upload: Future[str] | None = None
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="upload")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._metadata and error is None:  # claimed, by the main process
            self._begin_upload()  # of the report
        super().__exit__(kind, error, trace)
        self._uploads.shutdown()

    # -- the start ----------------------------------------------------------------------------

    def _lock_folder(self) -> None:
        """Lock the working folder, and bring it to the state in storage unless it has a newer one."""
        super()._lock_folder()
        launch, address = self._config.launch, self._run.address
        pointer = self._run.open()
        names = {name for name, _, _ in list_objects(address, is_deep=False)}
        if pointer is None:
            self._check_no_run(names)
            return
        self._saves = pointer.saves
        tokens = self._token_file.read_text().split() if self._token_file.is_file() else []
        is_own = pointer.token in tokens
        if is_own:  # and stays so if this start can't replace the pointer
            self._tokens.append(pointer.token)
        begun_by = set((pointer.launch or "").splitlines())
        is_restart = not begun_by.isdisjoint(self.launchers)
        if launch.resume is None and not is_restart:
            if not launch.overwrite and (pointer.saves or not is_own):
                raise contains_a_run(address, [address / "last.json"])
        elif is_own and self.last.is_file():
            with self.last.open("rb") as last:
                is_newer = not self._saves or hash_file(last) != self._saves[0].sha256
            if is_newer:
                self._log(f"{self.last} is newer than what {address} has: it is used")
        elif pointer.saves:
            with write_errors(self.path, _MAKE_ROOM):
                self._download(names)
        elif launch.resume is not None:
            raise UserError(f"{address}: no checkpoint was saved; start again with --overwrite")
        file = self._config.resume_file.name
        if launch.resume is not None and not (self.path / file).is_file():
            self._copy({file} & names)

    def _check_no_run(self, names: set[str]) -> None:
        launch, address = self._config.launch, self._run.address
        found = sorted(n for n in names if is_name_of_run(n) and n.endswith((".pt", ".csv")))
        if found and not launch.overwrite:
            raise contains_a_run(address, [address / name for name in found])
        if launch.resume is not None and not self.last.is_file():
            raise UserError(
                f"{address}: no run to resume; start a new one without --resume, or name it with "
                "--exp-name"
            )

    def _download(self, names: set[str]) -> None:
        """Replace the run in the working folder by the one in storage."""
        errors = []
        for place, saved in enumerate(self._saves):
            try:
                with replacing(self.last) as temporary:
                    self._run.download(saved, temporary)
                    delete_owned(self.path)
                self._saves = self._saves[place:]
                break
            except UserError as error:
                errors.append(str(error))
        else:
            raise UserError(errors[0])
        for text in errors:
            self._log(f"warning: {text}; using {self._run.path(self._saves[0])} instead")
        self._copy({*COPIED} & names)
        self._log(f"{self._run.address}: save {self._saves[0].generation} copied to {self.path}")

    def _copy(self, names: set[str]) -> None:
        """Copy files from storage, which need not be put again."""
        for name in names:
            with replacing(self.path / name) as temporary, temporary.open("wb") as file:
                file.writelines(read_chunks(self._run.address / name))
            self._stamps[name] = _stamp((self.path / name).stat())

    def claim(
        self, config: TrainConfig, data: PreparedData, resumed: Resumed, metadata: Content
    ) -> None:
        """Make this start the one that may write at the address; see `RunFolder.claim`.

        Raises:
            UserError: another one has begun or continued the run there meanwhile.
        """
        address = self._run.address
        with write_errors(self.path, _MAKE_ROOM):
            write_text(self._token_file, "\n".join(self._tokens))
        try:
            saves = () if resumed.is_new else self._saves
            self._run.replace_pointer(Pointer(self._tokens[0], "\n".join(self.launchers), saves))
        except FileExistsError:
            raise UserError(
                f"{address}: another run has begun or continued there at this moment; choose another "
                "folder with --exp-name NAME, or stop it and use --resume"
            ) from None
        if resumed.is_new:
            for name, _, _ in list(list_objects(address, is_deep=False)):
                if is_name_of_run(name):
                    delete(address / name)
        super().claim(config, data, resumed, metadata)
        self._log(f"{address}: put from {self.path} after each save")
        if resumed.source == self.last:
            self._begin_upload()

    # -- uploads ------------------------------------------------------------------------------

    def _write(self, folder: Path, files: dict[str, Content]) -> str:
        failure = super()._write(folder, files)
        if not failure and folder == self.path:
            self._begin_upload()
        return failure

    def _begin_upload(self) -> None:
        """Put what has changed, in the background; one that has not begun yet will put it, too."""
        upload = self._upload
        if upload is None or upload.running() or upload.done():
            self._upload = self._uploads.submit(self._put_changed)

    def _put_changed(self) -> str:
        """Put the files that have changed since they were put, last.pt at the end; return the failure.

        Raises:
            RunError: another start has taken the run over.
        """
        address, path = self._run.address, self.path
        try:
            self._run.check_pointer()
            others = set(find_owned(self.path)) - {self.last, self.path / "last.1.pt"}
            for path in [*sorted(others), self.last]:
                with suppress(FileNotFoundError), path.open("rb") as file:
                    self._put(path.name, file)
        except FileExistsError:
            raise RunError(
                f"{address}: another start has taken the run over; this one ends, and its files are in "
                f"{self.path}"
            ) from None
        except UserError as error:
            return str(error)
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        return ""

    def _put(self, name: str, file: IO[bytes]) -> None:
        stamp = _stamp(os.fstat(file.fileno()))
        if self._stamps.get(name) != stamp:
            if name == self.last.name:
                self._run.put_last(file)
            else:
                put(self._run.address / name, file)
            self._stamps[name] = stamp

    def _finish_write(self) -> None:
        super()._finish_write()
        if self._upload is not None and self._upload.done():
            self._warn(self._finish_upload())

    def wait(self) -> None:
        """Wait until the last save is on the disk, and put or known not to be.

        Raises:
            RunError: a weight is not finite, or another start has taken the run over.
        """
        super().wait()
        self._warn(self._finish_upload())

    def _warn(self, failure: str) -> None:
        if failure:
            self._log(f"warning: {failure}: it stays in {self.path}, and the next save tries again")

    def _finish_upload(self) -> str:
        """Wait for the upload and return why it failed; empty if it did not."""
        upload, self._upload = self._upload, None
        if upload is None:
            return ""
        try:
            return upload.result(_SOON)
        except StillRunningError:
            self._log(f"waiting for {self._run.address}; the last save is in {self.path}")
            return upload.result()

    def finish(self, state: TrainState, reason: StopReason | None) -> None:
        """Put again what could not be put; see `RunFolder.finish`.

        Raises:
            RunError: it can't be put or written.
        """
        super().finish(state, reason)
        self._begin_upload()
        failure = self._finish_upload()
        if failure:
            raise RunError(
                f"the run has ended, but {failure}; its files are in {self.path}: --resume on this "
                "machine puts them"
            )
        assert self._run.pointer is not None
        self._log(f"{self._run.address} has save {self._run.pointer.saves[0].generation}")


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns
