"""The folder of a run: one run at a time, never overwritten silently, full disks survived."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain
from pathlib import Path

from unet_ddp.checkpoints.file import Content, copy_to_host, save_all
from unet_ddp.checkpoints.run_files import (
    LATE,
    check_free,
    find_checkpoints,
    may_write,
    order_due,
    settle,
)
from unet_ddp.cli import save_config
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.data.splits import write_split
from unet_ddp.distributed.device import start_thread
from unet_ddp.distributed.hosts import launcher_names
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.files import as_local_path, is_address, make_writable, write_errors, write_text
from unet_ddp.runs.lock import lock_folder, unlock_folder
from unet_ddp.runs.mirror import Mirror
from unet_ddp.runs.recovery import (
    Replaced,
    choose_checkpoint,
    compose_best,
    contains_a_run,
    no_checkpoint,
    read_checkpoint,
)
from unet_ddp.runs.resume import StartPoint
from unet_ddp.storage import storage_of
from unet_ddp.training.state import TrainState

_ADVICE = "free some space, or choose another folder with --checkpoints"


class RunFolder(AbstractContextManager["RunFolder"]):
    """The folder of a run, locked by the main process; the other ranks write nothing.

    Checkpoints are written by a thread while training continues, from a copy in host memory.

    Args:
        config: names the folder.
        world: this process's.
        log: prints a line.
        mirror: follows the folder elsewhere (default: storage does, for a run at an address).
    """

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        log: Callable[[str], None],
        mirror: Mirror | None = None,
    ) -> None:
        self.path = config.folder
        self.last = self.path / "last.pt"
        self._constant: Content = {}  # the part of each checkpoint that stays the same
        names = world.gather(launcher_names())
        self.launchers = sorted(set(chain(*names)))  # a torchrun that restarts resumes its own run
        self._torchruns = {own for own, *_ in filter(None, names)}  # without --rdzv-id's name
        self._config = config
        self._writes = world.is_main
        self._log = log
        if mirror is None and is_address(config.address):
            mirror = storage_of(config.address).mirror(config, log)
        self._mirror = mirror or Mirror()
        self.on_saved: Callable[[Path], object] = lambda path: None
        """Called with each checkpoint that has been written, by the thread that writes."""
        self._unsaved: dict[str, Content] = {}  # checkpoints by name: due until they are written
        self._keeps_previous = True
        self._saved = time.monotonic()
        self._replaced = Replaced(config)
        self._unlock: Callable[[], object] = lambda: None
        self._writing: Future[str] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._constant and error is None:  # claimed, by the main process
                self._mirror.saved()  # the report
            self.wait()  # while the folder is still locked
            failed = self._rescue() if self._constant and error is not None else ""
            if failed:
                self._log(f"warning: {failed}")
        except RunError as failure:  # of a save that another error has overtaken
            self._log(str(failure))
        finally:
            if self._thread is not None:
                self._thread.shutdown()
            self._replaced.end(error)
            self._mirror.close()
            self._unlock()

    def open(self, config: TrainConfig) -> StartPoint:
        """Lock the folder and return what the run starts from: its checkpoint, or nothing.

        Raises:
            UserError: another run uses the folder, it contains a run that was not to be resumed
                or overwritten, there is none to resume, or a file of the user's is in the way.
        """
        launch = config.launch
        if launch.rescue_dir is not None:
            make_writable(as_local_path(launch.rescue_dir, "--rescue-dir"), "--rescue-dir")
        is_here = launch.resume is not None and self.path == config.address
        if is_here and not os.path.isdir(self.path):  # nor is it made for a lock
            raise no_checkpoint(config.resume_file)
        is_new = not os.path.exists(self.path)  # False of a name that is too long, too
        lock = lock_folder(self.path, "--checkpoints or --exp-name")
        self._unlock = partial(unlock_folder, lock, self.path) if is_new else lock.close
        with write_errors(self.path, _ADVICE):
            settle(self.path)
        self._mirror.open(self.launchers)
        path = choose_checkpoint(config, self.launchers, self._torchruns)
        if path is not None:
            start = read_checkpoint(path, overwrite=launch.overwrite)
            check_free(self.path, [name for name in LATE if may_write(config, name)])
            return start
        check_free(self.path, [p.name for p in self.path.iterdir() if may_write(config, p.name)])
        existing = find_checkpoints(self.path)
        if existing and not launch.overwrite:
            raise contains_a_run(self.path, existing)
        return StartPoint()

    def claim(self, config: TrainConfig, start: StartPoint, metadata: Content) -> None:
        """Take the folder for the run; first move aside what it replaces.

        `metadata` is the part of each checkpoint that stays the same.

        Raises:
            UserError: the folder is not writable, or the mirror is another start's by now.
        """
        self._mirror.claim(start)
        self._config = config
        self._keeps_previous = start.is_new or start.source == self.last  # no corrupt file
        with write_errors(self.path, _ADVICE if start.is_new else "free some space"):
            run = self._replaced.move(start)
        resume = config.resume_file.name
        self._constant = {**metadata, "run": run, "launchers": self.launchers, "resume": resume}

    def begin(self, data: PreparedData, state: TrainState, start: StartPoint) -> None:
        """Save the run, so that a kill finds one to resume; then write its settings and its split.

        On return no thread writes.

        Raises:
            UserError: a run that replaces another can't be saved: what the folder contained is there again.
        """
        self._unsaved |= start.due
        if start.is_new or start.source != self.last or start.due:
            self.save(state)
        failure = self._finish_write()
        if "last.pt" in self._unsaved and self._replaced.is_moved:
            self._unsaved = {}
            raise UserError(f"{failure}; {_ADVICE}")
        self._warn(failure)
        self._replaced.follow(state)
        with write_errors(self.path, "free some space"):
            save_config(self._config, self.path / "config.yaml")
            write_split(data.split, data.groups, self.path / "split.csv")
            for name, text in start.files.items():
                write_text(self.path / name, text, durable=True)
        self._mirror.saved()
        self._mirror.log_failures(waits=True)

    def is_due(self, step: int) -> bool:
        """Return whether last.pt is to be written after this step of the run, in mid-epoch."""
        steps, minutes = self._config.run.save_every_steps, self._config.run.save_every_minutes
        if steps and step % steps == 0:
            return True
        return bool(minutes) and time.monotonic() - self._saved >= 60 * minutes

    def save(
        self, state: TrainState, *, is_best: bool = False, labels: Labels | None = None
    ) -> None:
        """Begin to write last.pt, and best.pt and epoch_*.pt when they are due, in the background.

        From now on `labels` stand in them, if given.

        At most one save runs at a time: an earlier one is waited for. A full disk does not end the
        run: the old files stay, a warning is printed, and the next save tries again.

        Raises:
            RunError: the earlier one found a weight that is not finite, or another start has taken
                the run over.
        """
        self._warn(self._finish_write())
        self._mirror.log_failures(waits=False)
        self._saved = time.monotonic()
        if labels is not None:
            self._constant = {**self._constant, "labels": labels.to_dict()}
        if not self._writes:
            return
        self._replaced.delete()
        last = {**self._constant, **state.state_dict()}
        new = {"last.pt": last}
        if is_best:
            new["best.pt"] = compose_best(last)
        every = self._config.run.save_every
        if every and state.step == 0 < state.epoch and state.epoch % every == 0:
            new[f"epoch_{state.epoch:04d}.pt"] = last
        due = self._unsaved | copy_to_host(new)
        self._unsaved = {name: due.pop(name) for name in order_due(due)}
        if due:
            self._log(f"warning: {', '.join(due)}: given up; the memory is for later ones")
        self._thread = self._thread or start_thread("checkpoint")
        self._writing = self._thread.submit(self._write, self.path, self._unsaved)

    def stop(self, state: TrainState, reason: StopReason) -> None:
        """Save where --resume continues, unless an error has kept the run as it was."""
        if self._replaced.stop(is_error=reason.is_error):
            self.save(state)

    def wait(self) -> None:
        """Wait until the last save is on the disk, and in the mirror or known not to be.

        Raises:
            RunError: a weight is not finite, and nothing was written; or another start has taken the
                run over.
        """
        self._warn(self._finish_write())
        self._mirror.log_failures(waits=True)

    def _finish_write(self) -> str:
        """Wait for the thread that writes; return why it could not, if so."""
        try:
            failure = self._writing.result() if self._writing else ""
        except RunError:
            self._writing, self._unsaved = None, {}
            raise
        self._writing = None  # not after a Ctrl-C: the thread still takes files out of `_unsaved`
        return failure

    def _warn(self, failure: str) -> None:
        if failure:
            self._log(
                f"warning: {failure}: the old file is kept; training continues, and the next save "
                "tries again"
            )

    def finish(self, state: TrainState, reason: StopReason | None) -> None:
        """Write again what the last save could not, here or in the rescue folder; log why it ends.

        Raises:
            RunError: it can't be written here, or copied to the mirror; where it is instead.
        """
        failure = self._rescue()
        if failure:
            raise RunError(f"the run has ended, but {failure}")
        if reason is not None:
            by = f"by {reason.signal.name}" if reason.signal else "as asked"
            self._log(f"stopped {by} {self._replaced.describe_stop(state.done)}")
        self._mirror.finish()

    def _rescue(self) -> str:
        """Write what the last save could not; return the failure and where it is instead."""
        files, self._unsaved = self._unsaved, {}
        failure = self._write(self.path, files) if files else ""
        if not failure:
            return ""
        names = ", ".join(files)
        for rescue in dict.fromkeys((self._config.launch.rescue_dir, None)):
            with suppress(OSError):
                elsewhere = Path(tempfile.mkdtemp(prefix="unet_ddp-", dir=rescue))
                if not self._write(elsewhere, files):
                    return f"{failure}; its files are in {elsewhere} ({names})"
        return f"{failure}; no other folder is writable either"

    def _write(self, folder: Path, files: dict[str, Content]) -> str:
        """Write checkpoints, take those that are written out of `files`; see `save_all`."""
        if folder != self.path:
            return save_all(folder, files, keep_previous=False)
        names = list(files)
        with self._mirror.saving:
            failure = save_all(folder, files, keep_previous=self._keeps_previous)
        if "last.pt" not in files:
            self._keeps_previous = True
        if not failure:
            self._mirror.saved()
        for name in names:
            if name not in files:
                self.on_saved(folder / name)
        return failure
