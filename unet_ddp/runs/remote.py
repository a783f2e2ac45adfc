"""The folder of a run at an address: on this machine as any other, and put from there."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunningError
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock

from unet_ddp.config import TrainConfig
from unet_ddp.data.checks.check import PreparedData
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.files import write_errors, write_text
from unet_ddp.runs.checkpoint import Content
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.pointer import Pointer
from unet_ddp.runs.resume import Resumed
from unet_ddp.runs.working_folder import MAKE_ROOM, WorkingFolder, stamp_of
from unet_ddp.storage import Url, delete, list_objects, put, read_version
from unet_ddp.training.state import TrainState

_SOON = 2.0  # seconds; a longer wait for storage is said
_SMALL = 4 * 2**20  # bytes: larger ones go in parts, whatever is there


def choose_folder(config: TrainConfig, world: World, log: Callable[[str], None]) -> RunFolder:
    """Return the folder of a run, on this machine or at an address."""
    kind = RemoteRunFolder if isinstance(config.place, Url) else RunFolder
    return kind(config, world, log)


class RemoteRunFolder(WorkingFolder):
    """The working folder of a run at an address, and what puts its files there.

    A thread puts what has changed after each save, and at the end: training never waits for it. A
    checkpoint that can't be put is a warning, and the next save tries again.
    """

    def __init__(self, config: TrainConfig, world: World, log: Callable[[str], None]) -> None:
        super().__init__(config, world, log)
        self._saving = Lock()  # held while checkpoints are written that belong together
        self._upload: Future[str] | None = None
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="upload")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._metadata and error is None:  # claimed, by the main process
            self._begin_upload()  # of the report
        super().__exit__(kind, error, trace)
        self._uploads.shutdown()

    def claim(
        self, config: TrainConfig, data: PreparedData, resumed: Resumed, metadata: Content
    ) -> None:
        """Make this start the one that may write at the address; see `RunFolder.claim`.

        Raises:
            UserError: another one has begun or continued the run there meanwhile.
        """
        address = self._run.address
        with write_errors(self.path, MAKE_ROOM):
            write_text(self._token_file, "\n".join(self._tokens))
        try:
            saves, best = ((), None) if resumed.is_new else (self._saves, self._best)
            launch, names = "\n".join(self.launchers), tuple(sorted(self._names))
            self._run.replace_pointer(Pointer(self._tokens[0], launch, saves, best, names))
        except FileExistsError:
            raise UserError(
                f"{address}: another run has begun or continued there at this moment; choose another "
                "folder with --exp-name NAME, or stop it and use --resume"
            ) from None
        if resumed.is_new:
            for name, _, _ in list(list_objects(address, is_deep=False)):
                if name in self._names:
                    delete(address / name)
            self._keep_unsaved()
        super().claim(config, data, resumed, metadata)
        self._log(f"{address}: put from {self.path} after each save")
        if resumed.source == self.last and not resumed.due:  # which `begin` writes first
            self._begin_upload()

    # -- uploads ------------------------------------------------------------------------------

    def _write(self, folder: Path, files: dict[str, Content]) -> str:
        with self._saving:
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
        try:
            self._put_files()
        except FileExistsError:
            self._stored_file.unlink(missing_ok=True)  # what a line names, the next start keeps
            raise RunError(
                f"{self._run.address}: another start has taken the run over; this one ends, and its "
                f"files are in {self.path}"
            ) from None
        except UserError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename or self.path}: {error.strerror or error}"
        return ""

    def _put_files(self) -> None:
        """Put the checkpoints as they are now, and before them other files, as new or newer."""
        with ExitStack() as stack:
            checkpoints = {}
            with self._saving:  # best.pt is the one of which last.pt speaks
                for path in (self.last, self.path / "best.pt"):
                    with suppress(FileNotFoundError):
                        checkpoints[path.name] = stack.enter_context(path.open("rb"))
            stamps = {name: stamp_of(os.fstat(file.fileno())) for name, file in checkpoints.items()}
            others = {path.name for path in self._find_files()} - {"last.pt", "last.1.pt"}
            self._run.check_pointer()
            self._run.record_files(others)
            for name in sorted(others - {"best.pt"}):
                with suppress(FileNotFoundError):
                    self._put(name)
            changed = {n: f for n, f in checkpoints.items() if self._stamps.get(n) != stamps[n]}
            if changed:
                self._run.put_save(changed.get("last.pt"), changed.get("best.pt"))
                self._stamps |= stamps
        if "last.pt" in changed and self._run.pointer is not None:
            write_text(self._stored_file, self._run.pointer.saves[0].sha256)

    def _put(self, name: str) -> None:
        """Put a file that has changed; a small one only in place of what is there now.

        A start that has lost the run while its put was on the way then replaces nothing.
        """
        address = self._run.address / name
        with (self.path / name).open("rb") as file:
            status = os.fstat(file.fileno())
            if self._stamps.get(name) == stamp_of(status):
                return
            is_small = status.st_size < _SMALL
            _, there = (is_small and read_version(address)) or (b"", False)
            self._run.check_pointer()
            try:
                put(address, file.read() if is_small else file, replaces=there or not is_small)
            except FileExistsError:
                self._put(name)  # unless the pointer says that this start has lost
            else:
                self._stamps[name] = stamp_of(status)

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
            self._stored_file.unlink(missing_ok=True)
            raise RunError(
                f"the run has ended, but {failure}; its files are in {self.path}: --resume on this "
                "machine puts them"
            )
        assert self._run.pointer is not None
        self._log(f"{self._run.address} has save {self._run.pointer.saves[0].generation}")
