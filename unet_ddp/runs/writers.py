"""Writers of an epoch's figures: metrics.csv, TensorBoard, Weights & Biases."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unet_ddp.checkpoints.run_files import EVENTS
from unet_ddp.config import TrainConfig
from unet_ddp.data.loaders import Loaders
from unet_ddp.errors import UserError, count_of, one_line
from unet_ddp.files import open_own, replacing, write_errors
from unet_ddp.files.closed import find_closed
from unet_ddp.files.contents import describe_bytes
from unet_ddp.files.output import say
from unet_ddp.metrics.scores import Validation
from unet_ddp.plugins import find
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.own_callback import OwnCallback
from unet_ddp.settings import called
from unet_ddp.training.state import TrainState

Row = dict[str, Any]

_NO_CLASSES = "dice_loss", "dice_at_threshold"


@dataclass(frozen=True)
class RunInfo:
    """A run, for a callback, which is made before the folder is the run's."""

    folder: Path
    name: str | None
    """As --exp-name says."""
    settings: dict[str, Any]
    state: TrainState
    validation: Any
    """The validation images, by (epoch, index); None without any."""
    log: Callable[[str], None]
    """Prints a line above the progress bar."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """What run.json says about this start: command, commit, versions."""
    processes: int = 1
    """Of the run; a callback is on the main one only."""
    tracked: Mapping[str, str] = field(default_factory=dict)
    """The ids that this run had at tracking services in an earlier start, by the services' names."""


def open_named(
    config: TrainConfig,
    state: TrainState,
    loaders: Loaders,
    log: Callable[[str], None],
    **about: Any,
) -> list[Any]:
    """Return the callbacks that settings call, as Weights & Biases', and then the user's own.

    `about` are further fields of their `RunInfo`. Each has any of `step(report, done)`, `epoch(row)`, `saved(path)` and `close(ending)`. One that returns True ends
    the run, on all ranks after the same step.

    Raises:
        UserError: one refuses, or the validation image to log can't be read.
    """
    images = loaders.validation.dataset if loaders.validation else None
    run = RunInfo(config.folder, config.run.exp_name, config.to_dict(), state, images, log, **about)
    names = [*called(config.run, "callbacks"), *called(config.launch, "callbacks")]
    ours = [find("callbacks", name)(run) for name in names]
    return [*ours, *(OwnCallback(name, run) for name in config.launch.callback)]


def open_files(
    config: TrainConfig, state: TrainState, log: Callable[[str], object] = say
) -> list[Any]:
    """Return the writers into a run's folder; they continue after the epochs that it has done.

    One whose steps are all saved, but not its scores, is validated and written again. What the user's programs
    have changed in metrics.csv, or deleted, is a line in the `log`.
    """
    done, path = state.epoch * state.steps_per_epoch, config.folder / "metrics.csv"
    with write_errors(path, "free some space"):
        aside = _set_aside_foreign(path)
        rows = CsvWriter(path, after=done)
    if rows.count < state.epoch:
        where = f"; the file that was there is {aside} now" if aside else ""
        log(f"warning: {path}: {rows.count} rows for {count_of(state.epoch, 'epoch')} done{where}")
    return [rows, TensorBoardWriter(config.folder, after=done)]


def _set_aside_foreign(path: Path) -> Path | None:
    """Rename a metrics.csv whose columns another program has changed; return its new name."""
    rows = read_rows(path)
    if not rows or "step" in rows[0]:
        return None
    names = (path.with_name(f"metrics.{k}.csv") for k in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def score_columns(validation: Validation | None, names: list[str]) -> Row:
    """Return the columns of scores; a class that never occurs has empty cells."""
    if validation is None:
        return {}
    scores = validation.scores
    row: Row = {"validation_dice": scores.dice, "validation_iou": scores.iou}
    if validation.threshold is not None:
        row["threshold"] = validation.threshold
        row["dice_at_threshold"] = validation.dice_at_threshold
    row["validation_score"] = validation.score
    row["calibration_error"] = validation.calibration_error
    for score, values in (("dice", scores.dice_per_class), ("iou", scores.iou_per_class)):
        for name, value in zip(names, values, strict=True):
            row[score_column(score, name)] = value
    return {key: to_cell(value) for key, value in row.items()}


def score_column(score: str, name: str) -> str:
    """Return the column of a class's score, none that has another meaning."""
    column = f"{score}_{one_line(name)}"
    return f"{column}_" if column in _NO_CLASSES else column


def to_cell(value: float) -> float | str:
    """Return a number for a row, or an empty cell for nan."""
    return "" if math.isnan(value) else value


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv, none without such a file; a corrupt one is a UserError."""
    if not path.exists():
        return []
    try:
        if not path.is_file():
            raise ValueError("no regular file")
        data = path.read_bytes()
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
        if any(None in row for row in rows):
            raise ValueError("a row has more cells than there are columns")
    except UserError:  # of an address
        raise
    except UnicodeDecodeError:
        kind = describe_bytes(data)
        raise UserError(f"{path}: corrupt ({kind}); delete it, or move it away") from None
    except (OSError, ValueError, csv.Error) as error:
        raise find_closed(path) or UserError(
            f"{path}: corrupt ({error}); delete it, or move it away"
        ) from None
    return rows


def describe_time(seconds: float) -> str:
    """Return a time in a unit that suits it."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def to_float(cell: str | None) -> float:
    """Return nan for an empty cell, and for one that a crash has left unfinished."""
    try:
        return float(cell or "nan")
    except ValueError:
        return math.nan


class CsvWriter:
    """Writes metrics.csv: one row per epoch, on the disk at once.

    A row that can't be written is written with the next one. Rows of steps later than `after` are
    dropped, as a resumed run writes them again; for a corrupt file see `read_rows`.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self.path = path
        self.columns: list[str] = []
        self.count = 0
        """Rows of the steps up to `after`."""
        self._due: list[Row] = []
        if path.exists():
            rows = [row for row in read_rows(path) if (row.get("step") or "").isdecimal()]
            rows = [row for row in rows if to_float(row["step"]) <= after]
            self.count = len(rows)
            self._rewrite(rows)

    def _rewrite(self, rows: list[dict[str, str]], columns: Iterable[str] = ()) -> None:
        """Replace the file by rows, with their columns and these."""
        if rows:
            columns = dict.fromkeys([*rows[0], *columns])
        columns = list(columns)
        with (
            replacing(self.path, durable=True) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, columns)
            if columns:
                writer.writeheader()
            writer.writerows(rows)
        self.columns = columns  # not before the file has them: the disk may be full

    def epoch(self, row: Row) -> None:
        """Append a row, and columns that the file has not: another --loss has other terms.

        A full disk may take a part of it, which is taken back.
        """
        self._due.append(row)
        if self.columns and not row.keys() <= set(self.columns):
            self._rewrite(read_rows(self.path), row)
        columns = self.columns or list(row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        if not self.columns:
            writer.writeheader()
        writer.writerows(self._due)
        with open_own(self.path, "a") as file:
            append_whole(file.fileno(), text.getvalue().encode())  # before last.pt has the epoch
        self.columns, self._due = columns, []

    def close(self, ending: Ending | None = None) -> None:
        """Write the rows that are due, if any."""
        if self._due:
            self.epoch(self._due.pop())


def append_whole(file: int, data: bytes) -> None:
    """Append `data` to an open file, on the disk on return; all of it, or nothing if that fails."""
    size = os.fstat(file).st_size
    try:
        while data:
            data = data[os.write(file, data) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


class TensorBoardWriter:
    """Writes TensorBoard's event file into the run folder.

    torch's SummaryWriter writes in a thread, which ends with a traceback when a disk is full.
    """

    def __init__(self, folder: Path, *, after: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        name = f"{int(time.time())}.{socket.gethostname()}.{os.getpid()}{EVENTS}"
        self.path = folder / f"events.out.tfevents.{name}"
        self._event = Event
        self._due = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if after:  # rows of an earlier start after this step are not shown
            start = SessionLog(status=SessionLog.START)
            self._due.append(Event(wall_time=time.time(), step=after + 1, session_log=start))

    def epoch(self, row: Row) -> None:
        """Append a scalar for each float of the row."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        summary = Summary()
        for name, value in row.items():
            if isinstance(value, float):
                summary.value.add(tag=name, simple_value=value)
        self._due.append(self._event(wall_time=time.time(), step=row["step"], summary=summary))
        records = io.BytesIO()
        for event in self._due:
            RecordWriter(records).write(event.SerializeToString())
        with open_own(self.path, "a") as file:
            append_whole(file.fileno(), records.getvalue())
        self._due = []
