"""The output of a run: progress bar, lines, a row of figures per epoch; silent off the main rank."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from unet_ddp.checkpoints.file import Content
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.loaders import Loaders
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of, hides_bars
from unet_ddp.files.output import say
from unet_ddp.metrics.scores import UNSCORED, Validation
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.outlook import Outlook
from unet_ddp.runs.own_callback import OwnCallback
from unet_ddp.runs.record import RunRecord
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.service import ServiceWriter
from unet_ddp.runs.writers import Row, open_files, open_named, score_columns, to_cell
from unet_ddp.training.guard import FiniteGuard
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import StepReport

_REFRESH = 0.5  # seconds between the bar's figures


def console(world: World) -> Callable[..., None]:
    """Return `say` of files/output.py, which prints a line; silent off the main rank."""
    return say if world.is_main else lambda line, **fields: None


class Tracker:
    """Follows a run from where it starts, on one rank; prints and writes only on the main one.

    `stop` ends the run: with the error of a callback of the user's own, or because one asks for the end.
    `log_uncompiled` is called once, after the first step.
    """

    def __init__(
        self,
        config: TrainConfig,
        data: PreparedData,
        state: TrainState,
        loaders: Loaders,
        world: World,
        stop: StopSignal,
        log_uncompiled: Callable[[Callable[[str], None]], None] | None,
        start: StartPoint,
    ) -> None:
        self._log = console(world)
        self._guard = FiniteGuard(
            world,
            data.split.training,
            most=config.launch.max_bad_steps,
            log=self._log,
            has_scaler=state.precision.scaler.is_enabled(),
            skipped=int(state.skipped[1]),  # by earlier starts
        )
        self._world, self._device = world, world.device
        self._class_names = data.labels.class_names
        self._images_per_step = loaders.training.sampler.per_step * world.size
        self._steps, self._waited = 0, 0.0  # of this epoch: steps, seconds waiting for data
        self._began = self._refreshed = self._last = time.perf_counter()
        self._writers: list[Any] = []
        self._stop, self._state = stop, state
        self._record: RunRecord | None = None
        self._outlook: Outlook | None = None
        self._open_files = partial(open_files, config, state, self._log)
        world.on_main(lambda: self._begin(config, data, loaders, start))
        self._log_uncompiled = log_uncompiled
        self.bar = tqdm(  # silent in a log file, where the line of each epoch is enough
            total=state.schedule.end,
            initial=state.done,
            unit="step",
            disable=hides_bars() if world.is_main else True,
            dynamic_ncols=True,
            smoothing=0.05,
        )

    def _begin(
        self, config: TrainConfig, data: PreparedData, loaders: Loaders, start: StartPoint
    ) -> None:
        """Make what writes on the main process alone."""
        self._record = RunRecord(config, data, self._world, self._log, is_new=start.is_new)
        about = {"start": self._record.start, "tracked": self._record.tracked}
        self._writers += open_named(
            config, self._state, loaders, self._log, processes=self._world.size, **about
        )
        for writer in self._writers:
            if isinstance(writer, ServiceWriter):
                self._record.start["tracked"][writer.name] = writer.run_id
        self._outlook = Outlook(config, data, self._state, self._world, self._log)

    def describe(self, metadata: Content) -> Content:
        """Return `metadata` of checkpoints with what the run's record adds; on the main process."""
        assert self._record is not None
        return self._record.describe(metadata)

    def saved(self, path: Path) -> None:
        """Tell the writers of a checkpoint that has been written; any thread may call it."""
        self._tell("saved", path)

    def _tell(self, moment: str, *values: object) -> None:
        for writer in self._writers:
            try:
                method = getattr(writer, moment, None)  # a failure on another thread takes it away
                if method is not None and method(*values):
                    self._log(f"--callback {writer.name} ends the run")
                    self._stop.request_stop(None)
            except (OSError, UserError) as error:  # a full disk does not end a run
                self._explain(writer, moment, error)

    def _explain(self, writer: object, moment: str, error: OSError | UserError) -> None:
        if isinstance(writer, OwnCallback):
            assert isinstance(error, UserError)
            if error.__cause__ is not None:
                self.log("".join(traceback.format_exception(error.__cause__)).splitlines())
            self._stop.request_stop(error)
            return
        end = "this row is written with the next"
        if moment == "close":
            end = "its last rows are lost"
        self._log(f"warning: {type(writer).__name__}: {error}; {end}")

    def __enter__(self) -> Tracker:
        """Open the files in the run's folder, which is the run's by now."""

        def begin() -> None:
            self._writers[:0] = self._open_files()  # where own callbacks find the row of an epoch
            if self._record is not None:
                self._record.open(self._state)

        self._world.on_main(begin)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell the writers how the run ends, which the record has last.

        Raises:
            UserError: a callback of the user's own fails at this.
        """
        self.bar.close()
        self._tell("close", Ending.of(error, self._stop.reason))
        self._writers = []  # a checkpoint may still be saved
        try:
            if error is None:
                self._stop.raise_error()
        except UserError as failure:
            error = failure
            raise
        finally:
            if self._record is not None:
                self._record.close(Ending.of(error, self._stop.reason))

    def log(self, *groups: Iterable[str]) -> None:
        """Print lines above the bar."""
        for line in chain(*groups):
            self._log(line)

    def begin_epoch(self, state: TrainState) -> None:
        """Start the clocks of an epoch, or of the rest of one."""
        epochs = state.schedule.end // state.steps_per_epoch
        self.bar.set_description(f"epoch {state.epoch + 1}/{epochs}")
        self._began = self._last = time.perf_counter()
        self._steps, self._waited = 0, 0.0

    def step(self, report: StepReport, done: int, *, waited: float) -> None:
        """Check that a step was finite, and show it: the run has `done`, its epoch has `waited` seconds.

        Raises:
            RunError: too many steps in a row were not finite.
        """
        self._steps += 1
        self._waited = waited
        self.bar.update()
        self._guard.check(report, done)
        self._tell("step", report, done)
        if self._log_uncompiled:  # said once: the first step has compiled
            self._log_uncompiled(self._log)
            self._log_uncompiled = None
        self._last = time.perf_counter()
        if self._outlook is not None:
            self._outlook.step(self._steps, self._last, wait=self.data_wait)
        if self.bar.disable or self._last - self._refreshed < _REFRESH or not self._done:
            return
        self._refreshed = self._last
        self.bar.set_postfix_str(
            f"loss {self._guard.loss:.4f}, rate {report.learning_rate:.2e}, "
            f"{self.images_per_second:.1f} images/s, data {self.data_wait:.0%}"
        )

    def end_steps(self) -> None:
        """Judge the last steps as `step` does, and stop the clock once the device has done them."""
        self._guard.flush()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._last = time.perf_counter()

    @property
    def _training(self) -> float:
        """Seconds of this epoch's training."""
        return max(self._last - self._began, 1e-9)

    @property
    def _done(self) -> int:
        """Steps of this epoch that the device has done: of a GPU, those that are judged."""
        return self._steps - self._guard.pending

    @property
    def images_per_second(self) -> float:
        """Training images per second of this epoch, over all ranks."""
        return self._done * self._images_per_step / self._training

    @property
    def data_wait(self) -> float:
        """Share of this epoch's training that was spent waiting for data."""
        return self._waited / self._training

    def log_epoch(self, state: TrainState, validation: Validation | None) -> None:
        """Print a line and write a row about the epoch that ends, before `finish_epoch`."""
        skipped, skipped_in_all = map(int, state.skipped.tolist())
        total, *terms = (state.sums / (state.steps_per_epoch - skipped)).tolist()  # nan without any
        seconds = time.perf_counter() - self._began
        line = (
            f"epoch {state.epoch + 1}: loss {total:.4f}, {_describe(validation, state.best)}, "
            f"{self.images_per_second:.1f} images/s, {self.data_wait:.0%} waiting for data, "
            f"{seconds:.1f} s"
        )
        row: Row = {
            "epoch": state.epoch + 1,
            "step": state.done,
            "learning_rate": state.schedule.at(state.done - 1),
            "loss": to_cell(total),
        }
        for name, term in zip(state.loss.columns, terms, strict=True):
            if name is not None:
                row[name] = to_cell(term)
        row |= {
            **score_columns(validation, self._class_names),
            "skipped_steps": skipped_in_all,
            "images_per_second": self.images_per_second,
            "data_wait": self.data_wait,
            "seconds": seconds,
        }
        self._row = row
        self._log(
            line,
            event="epoch",
            row={name: None if each == "" else each for name, each in row.items()},
        )
        self._tell("epoch", row)

    def end_epoch(self, state: TrainState) -> None:
        """Record an epoch after `finish_epoch`, and print a line if the run's patience is over with it."""
        if self._record is not None:
            self._record.end_epoch(state, self._row)
        first, end = state.schedule.anneal or (0, 0)
        if end and first == state.done:
            self.bar.total = end
            best = f"best validation {state.best_name} {state.best:.4f} in epoch {state.best_epoch + 1}"
            if state.best == UNSCORED:
                best = "validation has nothing to score"
            self._log(
                f"--patience {state.patience}: {best}; the learning rate falls to its end in "
                f"{count_of((end - first) // state.steps_per_epoch, 'more epoch')}, then the run ends"
            )


def _describe(validation: Validation | None, best: float) -> str:
    """Return a few words about a validation, the score that chooses first; `best` is the highest before it."""
    if validation is None:
        return "not validated"
    if math.isnan(validation.score):
        return f"validation {validation.score_name}: nothing to score"
    text = f"validation {validation.score_name} {validation.score:.4f}"
    if validation.threshold is not None:
        text += f" at threshold {validation.threshold:.3f}"
    if validation.score >= best:
        text += " (best)"
    if validation.threshold is not None:
        text += f", {validation.scores.dice:.4f} at 0.5"
    elif validation.score_name != "Dice":
        text += f", Dice {validation.scores.dice:.4f}"
    return text
