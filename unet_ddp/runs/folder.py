"""The folder of a run: one run at a time, never overwritten silently, full disks survived."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO
from uuid import uuid4

import torch

from unet_ddp.cli import save_config
from unet_ddp.config import TrainConfig
from unet_ddp.data.checks.check import PreparedData
from unet_ddp.data.splits import write_split
from unet_ddp.distributed.hosts import launcher_names
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.files import lock_folder, make_writable, write_errors, write_text
from unet_ddp.runs.checkpoint import Content, copy_to_host, load_or_previous, previous, save_all
from unet_ddp.runs.description import Description, SavedRun, check_content
from unet_ddp.runs.hosts import mark_begun, saved_launchers, write_fetched
from unet_ddp.runs.pretrained import find_weights_file
from unet_ddp.runs.resume import Resumed
from unet_ddp.runs.weights import read_model
from unet_ddp.storage import local_path
from unet_ddp.training.state import TrainState

RUN_FILES = (
    "last.pt", "last.1.pt", "best.pt", "epoch_*.pt", "config.yaml", "metrics.csv", "split.csv",
    "learning_rate.csv", "samples.png", "profile.json", "report.html", "events.out.tfevents.*",
)  # fmt: skip
EVALUATION_FILES = (
    "scores.json", "per_image.csv", "confusion.csv", "threshold.csv", "calibration.csv", "report.html"
)  # fmt: skip
"""All that `evaluate` writes; threshold.csv for two classes only."""
_METADATA_OF_BEST = ("unet_ddp", "architecture", "labels", "preprocessing", "config", "names")


class RunFolder:
    """The folder of a run, locked by the main process; the other ranks write nothing.

    Checkpoints are written by a thread while training continues, from a copy in host memory.

    Args:
        config: names the folder.
        world: this process's.
        log: prints a line.
    """

    def __init__(self, config: TrainConfig, world: World, log: Callable[[str], None]) -> None:
        self.path = config.folder
        self._metadata: Content = {}  # the part of each checkpoint that stays the same
        names = world.gather(launcher_names())
        self.launchers = sorted(set(chain(*names)))  # a torchrun that restarts resumes its own run
        self._torchruns = {own for own, *_ in filter(None, names)}  # without --rdzv-id's name
        self._config = config
        self._writes = world.is_main
        self._log = log
        self._failure = ""  # why the last save failed; empty if it did not
        self._saved = time.monotonic()
        self._lock: IO[str] | None = None
        self._writing: Future[str] | None = None
        # One OpenMP thread: with more threads than cores, libgomp's threads sleep between kernels
        # for the rest of the run, in training too, and waking them costs more than small kernels.
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="checkpoint", initializer=torch.set_num_threads, initargs=(1,)
        )

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()  # while the folder is still locked
        except RunError as failure:  # of a save that another error has overtaken
            self._log(str(failure))
        self._thread.shutdown()
        if self._lock is not None:
            self._lock.close()

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.path / "last.pt"

    def open(self, config: TrainConfig, fetched: Mapping[str, bytes] | None = None) -> Resumed:
        """Lock the folder, write `fetched` files of other hosts, return what the run starts from.

        Raises:
            UserError: another run uses the folder, it contains a run that was not to be resumed
                or overwritten, or there is none to resume.
        """
        if config.launch.rescue_dir is not None:
            make_writable(local_path(config.launch.rescue_dir, "--rescue-dir"), "--rescue-dir")
        is_local_file = config.launch.resume not in (None, "auto") and self.path == config.place
        if is_local_file and not self.path.is_dir():  # nor is it made for a lock
            raise no_checkpoint(config.resume_file)
        self._lock_folder()
        write_fetched(self.path, fetched or {})
        saved = saved_launchers(self.path)
        if not saved.isdisjoint(self.launchers):
            if config.launch.overwrite and saved.isdisjoint(self._torchruns):
                raise UserError(
                    f"{self.path}: its run began with this --rdzv-id, which continues it: leave --overwrite "
                    "out, or start a new run with another --rdzv-id"
                )
            return self._read_last(self.last, overwrite=config.launch.overwrite)
        if config.launch.resume is not None:
            path = self.path / config.resume_file.name
            return self._read_last(path, overwrite=config.launch.overwrite)
        existing = [path for path in self._list_files() if path.suffix in (".pt", ".csv")]
        if existing and not config.launch.overwrite:
            raise contains_a_run(self.path, existing[0].name)
        source = find_weights_file(config)
        return Resumed(weights=read_model(source) if source else None)

    def _lock_folder(self) -> None:
        self._lock = lock_folder(self.path, "--checkpoints or --exp-name")
        for temporary in self.path.glob("*.tmp"):  # left by a kill during a save
            temporary.unlink()

    def _read_last(self, path: Path, *, overwrite: bool) -> Resumed:
        if not path.is_file() and not previous(path).is_file():
            raise no_checkpoint(path)
        if path.name != self.last.name and self.last.exists() and not overwrite:
            raise UserError(
                f"--resume {path}: its run has continued to {self.last}; use --overwrite to go back "
                "and lose that, or --load to start another run from these weights"
            )
        content, path, warning = load_or_previous(path)
        if "optimizer" not in content:
            raise UserError(
                f"{path}: contains weights only; resume from a last.pt, or start from it with --load"
            )
        check_content(Description, path, content)
        position = check_content(
            SavedRun, path, {**content, "scaler": content.get("scaler") or None}
        ).position
        done = f"resuming {path}: {position.epoch} epochs and {position.step} steps are done"
        return Resumed(content, path, notes=[note for note in (warning, done) if note])

    def claim(
        self, config: TrainConfig, data: PreparedData, resumed: Resumed, metadata: Content
    ) -> None:
        """Write the settings and the split; a new run first deletes what the folder contained.

        `metadata` is the part of each checkpoint that stays the same.

        Raises:
            UserError: the folder is not writable.
        """
        run = resumed.content.get("run") if resumed.content else uuid4().hex
        self._config, self._metadata = config, {**metadata, "run": run, "launchers": self.launchers}
        advice = "free some space, or choose another folder with --checkpoints"
        with write_errors(self.path, advice):
            if resumed.is_new:
                self.clear()
            save_config(config, self.path / "config.yaml")
            write_split(data.split, data.groups, self.path / "split.csv")
            if resumed.range_test:
                write_text(self.path / "learning_rate.csv", "".join(resumed.range_test))

    def clear(self) -> None:
        """Delete the run in the folder, and what `evaluate` wrote about it."""
        evaluation = self.path / "evaluation"
        for path in [*self._list_files(), *(evaluation / name for name in EVALUATION_FILES)]:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty: files of the user's
            evaluation.rmdir()

    def _list_files(self) -> list[Path]:
        return [path for pattern in RUN_FILES for path in self.path.glob(pattern)]

    def begin(self, state: TrainState, resumed: Resumed, world: World) -> None:
        """Save a new run, so that a kill finds one to resume; on return no thread writes."""
        if resumed.is_new:
            self.save(state)
        world.on_main(self.wait)
        mark_begun(self._config, self.launchers, world)

    def is_due(self, step: int) -> bool:
        """Return whether last.pt is to be written after this step of the run, in mid-epoch."""
        steps, minutes = self._config.run.save_every_steps, self._config.run.save_every_minutes
        seconds = time.monotonic() - self._saved
        return bool(steps and step % steps == 0) or bool(minutes and seconds >= 60 * minutes)

    def save(self, state: TrainState, *, is_best: bool = False) -> None:
        """Begin to write last.pt, and best.pt and epoch_*.pt when they are due, in the background.

        At most one save runs at a time: an earlier one is waited for. A full disk does not end the
        run: the old files stay, a warning is printed, and the next save tries again.

        Raises:
            RunError: the earlier one found a weight that is not finite.
        """
        self._finish_write()
        self._saved = time.monotonic()
        if self._writes:
            files = copy_to_host(self._compose_files(state, is_best=is_best))
            self._writing = self._thread.submit(self._write, self.path, files)

    def wait(self) -> None:
        """Wait until the last save is on the disk.

        Raises:
            RunError: a weight is not finite; nothing was written.
        """
        self._finish_write()

    def _finish_write(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            self._failure = writing.result()
            if self._failure:
                self._log(
                    f"warning: {self._failure}: the old file is kept; training continues, and the "
                    "next save tries again"
                )

    def finish(self, state: TrainState, reason: StopReason | None) -> None:
        """Write again what the last save could not, here or in the rescue folder; log why it ends.

        Raises:
            RunError: it can't be written here; where it is instead.
        """
        if self._failure:
            self._rescue(state)
        if reason is not None:
            by = f"by {reason.signal.name}" if reason.signal else "as asked"
            self._log(f"stopped {by} after step {state.done}; continue with --resume")

    def _rescue(self, state: TrainState) -> None:
        is_best = state.best_epoch == state.epoch - 1 and state.step == 0
        files = self._compose_files(state, is_best=is_best)
        failure = self._write(self.path, files)
        if not failure:
            return
        for rescue in dict.fromkeys((self._config.launch.rescue_dir, None)):
            with suppress(OSError):
                elsewhere = Path(tempfile.mkdtemp(prefix="unet_ddp-", dir=rescue))
                if not self._write(elsewhere, files):
                    raise RunError(
                        f"the run has ended, but {failure}; its files are in {elsewhere}"
                    )
        raise RunError(f"the run has ended, but {failure}; no other folder is writable either")

    def _compose_files(self, state: TrainState, *, is_best: bool) -> dict[str, Content]:
        """Return checkpoints by name; last.pt is written last, as it says that the others exist."""
        last = {**self._metadata, **state.state_dict()}
        files: dict[str, Content] = {}
        if is_best:
            files["best.pt"] = {
                **{name: self._metadata[name] for name in _METADATA_OF_BEST},
                "model": last["ema"] or last["model"],  # the same tensors: copied once
                "best": last["best"],
                "threshold": state.threshold,
            }
        every = self._config.run.save_every
        if every and state.step == 0 and state.epoch % every == 0:
            files[f"epoch_{state.epoch:04d}.pt"] = last
        return {**files, "last.pt": last}

    def _write(self, folder: Path, files: dict[str, Content]) -> str:
        """Write checkpoints; see `save_all`."""
        return save_all(folder, files)


def no_checkpoint(path: Path) -> UserError:
    """Return the error of ``--resume`` where there is nothing to continue."""
    return UserError(
        f"{path}: no checkpoint to resume from; start a new run without --resume, or name the run with "
        "--exp-name"
    )


def contains_a_run(place: Path, name: str) -> UserError:
    """Return the error of a new run where there is a run, which the file `name` shows."""
    return UserError(
        f"{place} contains a run ({name}): continue it with --resume, choose another folder with "
        "--exp-name NAME, or delete it with --overwrite"
    )
