"""Run folders: one run at a time, never overwritten untold, full disks survived."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from unet_ddp.errors import RunError, UserError
from unet_ddp.runs.background import Background, copy_to_host
from unet_ddp.runs.checkpoint import Content, first_not_finite, save

_RUN_FILES = (
    "last.pt",
    "last.1.pt",
    "best.pt",
    "epoch_*.pt",
    "config.yaml",
    "metrics.csv",
    "split.csv",
    "samples.png",
    "profile.json",
    "report.html",
    "events.out.tfevents.*",
)
_EVALUATED = (  # what `evaluate` has written of the run, in `evaluation/`
    "scores.json",
    "per_image.csv",
    "confusion.csv",
    "threshold.csv",
    "calibration.csv",
    "report.html",
)


class RunFolder:
    """The folder of a run, held by its main process; on other ranks nothing is written.

    Args:
        path: the folder.
        writes: whether this is the main process.
    """

    def __init__(self, path: Path, *, writes: bool) -> None:
        self.path = path
        self.writes = writes
        self.trouble = ""
        """Why the newest checkpoint could not be written; empty when it was."""
        self._lock: IO[str] | None = None
        self._background: Background[str] = Background()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            warning = self.wait()  # while the folder is still held
        except RunError as another:
            warning = str(another)
        if warning:  # of a save that an error has overtaken; nobody else has asked for it
            print(warning, file=sys.stderr)
        self._background.close()
        if self._lock is not None:
            self._lock.close()

    @property
    def last(self) -> Path:
        """The checkpoint to go on from."""
        return self.path / "last.pt"

    def hold(self) -> None:
        """Make the folder and keep other runs out of it, until this process ends.

        Raises:
            UserError: another run is in it, or it can't be written to.
        """
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"{self.path}: {error.strerror or error}; choose a folder that can be written to by "
                "--checkpoints"
            ) from None
        try:
            # A record lock is this process's alone: its reading processes do not inherit it.
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            raise UserError(
                f"{self.path}: another run is in it (process {self._lock.read().strip() or '?'}); "
                "wait for its end, or choose another folder by --exp-name NAME"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        for half in self.path.glob("*.tmp"):  # left by a kill while saving
            half.unlink()

    def refuse_run(self, *, overwrite: bool) -> None:
        """Make sure that a new run may have the folder; nothing is deleted yet.

        Raises:
            UserError: there is a run and `overwrite` is not given.
        """
        marks = [path for path in self._held() if path.suffix in (".pt", ".csv")]
        if marks and not overwrite:
            raise UserError(
                f"{self.path} holds a run ({marks[0].name}): go on with it by --resume, choose "
                "another folder by --exp-name NAME, or delete it by --overwrite"
            )

    def clear(self) -> None:
        """Delete the run that is there."""
        for path in self._held():
            path.unlink()
        evaluation = self.path / "evaluation"
        for name in _EVALUATED:
            (evaluation / name).unlink(missing_ok=True)
        with suppress(OSError):  # it holds what somebody else has put there
            evaluation.rmdir()

    def _held(self) -> list[Path]:
        return [path for pattern in _RUN_FILES for path in self.path.glob(pattern)]

    def begin_write(self, files: Mapping[str, Content], position: str) -> str:
        """Have checkpoints written, as `write` does, beside what goes on: from a copy of them.

        At most one is being written: an earlier one is waited for, and its warning returned.

        Raises:
            RunError: of the earlier one.
        """
        warning = self.wait()
        if self.writes:
            kept = copy_to_host(dict(files))
            self._background.begin(lambda: self.write(kept, position))
        return warning

    def wait(self) -> str:
        """The warning, empty when all is well, of what is being written, once it is.

        Raises:
            RunError: as `write`.
        """
        return self._background.wait() or ""

    def write(self, files: Mapping[str, Content], position: str) -> str:
        """Write checkpoints by name, in this order; returns a warning, empty when all is well.

        A full disk or the like does not end the run: what was there before stays, and the next
        save tries again.

        Raises:
            RunError: a weight is not finite; nothing is written.
        """
        if not self.writes:
            return ""
        for name, content in files.items():
            bad = first_not_finite({k: content.get(k) for k in ("model", "ema")})
            if bad is not None:
                raise RunError(
                    f"{self.path / name}: not written, since {bad} holds nan or infinity at "
                    f"{position}; what was saved before is sound: lower --lr and --resume"
                )
        self.trouble = ""
        for name, content in files.items():
            try:
                save(self.path / name, content, keep_previous=name == self.last.name)
            except (OSError, RuntimeError) as error:
                self.trouble = " ".join(str(error).split())[:120]
                return (
                    f"WARNING: {self.path / name} can't be written ({self.trouble}): what was there "
                    "before is whole; training goes on, and the next save tries again"
                )
        return ""

    def finish(self, files: Mapping[str, Content], position: str, rescue: Path | None) -> None:
        """At the end of the run, write what the last save could not, here or elsewhere.

        Raises:
            RunError: it could not be written here; where it is now.
        """
        if not self.trouble or not self.write(files, position):
            return
        here, trouble = self.path, self.trouble
        elsewhere = Path(tempfile.mkdtemp(prefix="unet_ddp-", dir=rescue))
        self.path = elsewhere
        try:
            failed = self.write(files, position)
        finally:
            self.path = here
        saved = "nor there" if failed else f"its files are in {elsewhere}"
        raise RunError(
            f"{here}: the run has ended and its last checkpoint can't be written ({trouble}); {saved}"
        )


def find_model(given: str | None, folder: Path = Path("checkpoints")) -> Path:
    """The checkpoint to predict with: the one given, the folder's, or its newest run's.

    Raises:
        UserError: there is none.
    """
    if given is not None:
        path = Path(given)
        return path / "best.pt" if path.is_dir() else path
    for name in ("best.pt", "last.pt"):
        found = [folder / name, *folder.glob(f"*/{name}")]
        found = [path for path in found if path.is_file()]
        if found:
            return found[0] if found[0].parent == folder else max(found, key=_written)
    raise UserError(f"{folder}/best.pt: no such file; train first, or give --model FILE")


def _written(path: Path) -> float:
    return path.stat().st_mtime


def launch_name() -> str | None:
    """What tells one torchrun from another, the same for all its restarts; None without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    name = os.environ["TORCHELASTIC_RUN_ID"]
    return name if name != "none" else f"agent {os.getppid()}"
