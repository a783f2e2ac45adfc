"""The mirror of a run at an address: puts the files of its folder there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunningError
from contextlib import ExitStack, suppress
from threading import Lock
from typing import IO

from unet_ddp.config import TrainConfig
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.cloud.objects import Version, put, read_version
from unet_ddp.extras.cloud.working_folder import Stamp, WorkingFolder, stamp_of
from unet_ddp.files import write_text

SOON = 2.0  # seconds; a longer wait for storage is said
_SMALL = 4 * 2**20  # bytes: larger ones go in parts, whatever is there


class CloudMirror(WorkingFolder):
    """The mirror of a run at an address: brings its working folder to the state there, and puts its files.

    A thread puts what has changed after each save, and at the end: training never waits for it. A
    checkpoint that can't be put is a warning, and the next save tries again.
    """

    def __init__(self, config: TrainConfig, log: Callable[[str], None]) -> None:
        super().__init__(config, log)
        self.saving = Lock()
        self._upload: Future[str] | None = None
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="upload")

    def close(self) -> None:
        """End the thread."""
        self._uploads.shutdown()

    def saved(self) -> None:
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
            self.stored_file.unlink(missing_ok=True)  # what a line names, the next start keeps
            raise RunError(
                f"{self.run.address}: another start has taken the run over; this one ends, and its "
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
            with self.saving:  # best.pt is the one of which last.pt speaks
                for path in (self.last, self.path / "best.pt"):
                    with suppress(FileNotFoundError):
                        checkpoints[path.name] = stack.enter_context(path.open("rb"))
            stamps = {name: stamp_of(os.fstat(file.fileno())) for name, file in checkpoints.items()}
            others = {path.name for path in self.find_files()} - {"last.pt", "last.1.pt"}
            if self.run.check_pointer().is_replaced:  # what is there stays until the first save
                if "last.pt" not in checkpoints:
                    return
                self._put_checkpoints(checkpoints, stamps)
            self.run.delete_stale()
            self.run.record_files(others)
            for name in sorted(others - {"best.pt"}):
                with suppress(FileNotFoundError):
                    self._put(name)
            self._put_checkpoints(checkpoints, stamps)

    def _put_checkpoints(
        self, checkpoints: Mapping[str, IO[bytes]], stamps: Mapping[str, Stamp]
    ) -> None:
        """Put last.pt and best.pt, open files with these stamps, if they have changed."""
        changed = {}
        for name, file in checkpoints.items():
            if self.stamps.get(name) != stamps[name]:
                changed[name] = file
        if changed:
            self.run.put_save(changed.get("last.pt"), changed.get("best.pt"))
            self.stamps |= stamps
        if "last.pt" in changed and self.run.pointer is not None:
            write_text(self.stored_file, self.run.pointer.saves[0].sha256)

    def _put(self, name: str) -> None:
        """Put a file that has changed; a small one only in place of what is there now.

        A start that has lost the run while its put was on the way then replaces nothing.
        """
        address = self.run.address / name
        with (self.path / name).open("rb") as file:
            status = os.fstat(file.fileno())
            if self.stamps.get(name) == stamp_of(status):
                return
            content: bytes | IO[bytes] = file
            replaces: Version | bool = True
            if status.st_size < _SMALL:
                content = file.read()
                found = read_version(address)
                replaces = found[1] if found else False
            self.run.check_pointer()
            try:
                put(address, content, replaces=replaces)
            except FileExistsError:
                self._put(name)  # unless the pointer says that this start has lost
            else:
                self.stamps[name] = stamp_of(status)

    def log_failures(self, *, waits: bool) -> None:
        """Log why files could not be put, if that is known; `waits`: until it is known.

        Raises:
            RunError: another start has taken the run over.
        """
        if self._upload is not None and (waits or self._upload.done()):
            failure = self._finish_upload()
            if failure:
                self.log(
                    f"warning: {failure}: it stays in {self.path}, and the next save tries again"
                )

    def _finish_upload(self) -> str:
        """Wait for the upload and return why it failed; empty if it did not."""
        upload, self._upload = self._upload, None
        if upload is None:
            return ""
        try:
            return upload.result(SOON)
        except StillRunningError:
            self.log(f"waiting for {self.run.address}; the last save is in {self.path}")
            return upload.result()

    def finish(self) -> None:
        """Put again what could not be put.

        Raises:
            RunError: it can't be put.
        """
        self.saved()
        failure = self._finish_upload()
        if failure:
            self.stored_file.unlink(missing_ok=True)
            raise RunError(
                f"the run has ended, but {failure}; its files are in {self.path}: --resume on this "
                "machine puts them"
            )
        assert self.run.pointer is not None
        self.log(f"{self.run.address} has save {self.run.pointer.saves[0].generation}")
