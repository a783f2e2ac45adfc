"""What a run tells: a bar, lines, metrics.csv, TensorBoard, W&B; nothing off the main rank."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch.profiler import record_function
from tqdm import tqdm

from unet_ddp.config import TrainConfig
from unet_ddp.errors import one_line
from unet_ddp.metrics.scores import Validation
from unet_ddp.training.profiling import Profile
from unet_ddp.training.step import StepReport

Item = TypeVar("Item")
Row = dict[str, Any]

_REFRESH = 0.5  # seconds between looks at the loss, each a host sync


class Writer(Protocol):
    """Where numbers go."""

    def write(self, row: Row, step: int) -> None: ...

    def close(self) -> None: ...


def console(is_main: bool) -> Callable[[str], None]:
    """What shows a line to the user, above the bar where there is one; silent off the main rank."""
    return tqdm.write if is_main else lambda line: None


class Tracker:
    """Follows a run on one rank; speaks and writes only on the main one.

    Args:
        writers: none off the main rank.
        steps: of the whole run.
        done: steps that a resumed run has behind it.
        images_per_step: over all ranks.
        profile: is told of each step.
    """

    def __init__(
        self,
        writers: list[Writer],
        *,
        speaks: bool,
        steps: int,
        done: int = 0,
        images_per_step: int = 1,
        profile: Profile | None = None,
    ) -> None:
        self.writers = writers
        self.profile = profile
        self.speaks = speaks
        self.images_per_step = images_per_step
        self.waited = 0.0
        self._began = self._looked = self._last = time.perf_counter()
        self._steps = 0
        # Silent in a log file: there, the line of each epoch tells.
        self._bar = tqdm(
            total=steps,
            initial=done,
            unit="step",
            disable=None if speaks else True,
            dynamic_ncols=True,
            smoothing=0.05,
        )

    def say(self, line: str) -> None:
        """A line for the user, above the bar."""
        if self.speaks:
            tqdm.write(one_line(line))

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Epoch `epoch`, from 0, begins or goes on."""
        self._bar.set_description(f"epoch {epoch + 1}/{epochs}")
        self._began = self._last = time.perf_counter()
        self.waited, self._steps = 0.0, 0

    def waiting(self, batches: Iterable[Item]) -> Iterator[Item]:
        """`batches`, with the time counted that they are waited for."""
        source = iter(batches)
        while True:
            asked = time.perf_counter()
            try:
                with record_function("data wait"):
                    batch = next(source)
            except StopIteration:
                return
            finally:
                self.waited += time.perf_counter() - asked
            yield batch

    def step(self, report: StepReport) -> None:
        """A step was done; its loss is looked at now and then only."""
        self._steps += 1
        self._bar.update()
        if self.profile is not None:
            self._tell_profile(self.profile.step())
        now = self._last = time.perf_counter()
        if self._bar.disable or now - self._looked < _REFRESH:
            return
        self._looked = now
        self._bar.set_postfix_str(
            f"loss {report.losses[0].item():.4f}, rate {report.learning_rate:.2e}, "
            f"{self.images_per_second:.1f} images/s, data {self.data_wait:.0%}"
        )

    def _tell_profile(self, lines: list[str]) -> None:
        for line in lines:
            self.say(line)

    @property
    def seconds(self) -> float:
        """Since the epoch began here, with its scoring."""
        return time.perf_counter() - self._began

    @property
    def _training(self) -> float:
        """Seconds from the epoch's beginning here to its last step."""
        return max(self._last - self._began, 1e-9)

    @property
    def images_per_second(self) -> float:
        """Trained on in this epoch so far, over all ranks."""
        return self._steps * self.images_per_step / self._training

    @property
    def data_wait(self) -> float:
        """Share of this epoch's training that was spent waiting for data."""
        return self.waited / self._training

    def write(self, row: Row, step: int) -> None:
        """A row of numbers for all writers."""
        for writer in self.writers:
            try:
                writer.write(row, step)
            except OSError as error:  # a full disk does not end a run
                self.say(f"WARNING: {type(writer).__name__}: {error}; this row is lost there")

    def close(self) -> None:
        """The end."""
        if self.profile is not None:
            self._tell_profile(self.profile.close())
        self._bar.close()
        for writer in self.writers:
            try:
                writer.close()
            except OSError as error:
                self.say(f"WARNING: {type(writer).__name__}: {error}; its end is lost")


def start_tracker(
    config: TrainConfig,
    *,
    is_main: bool,
    device: torch.device,
    steps: int,
    done: int,
    images_per_step: int,
) -> Tracker:
    """The tracker of a run; `done` steps of `steps` are behind it."""
    writers: list[Writer] = []
    if is_main:
        folder = config.folder
        writers += [
            CsvWriter(folder / "metrics.csv", after=done),
            TensorBoardWriter(folder, after=done),
        ]
        if config.run.wandb:
            writers.append(WandbWriter(config.run.exp_name, folder, config.to_dict()))
    return Tracker(
        writers,
        speaks=is_main,
        steps=steps,
        done=done,
        images_per_step=images_per_step,
        profile=Profile(config.folder, device) if is_main and config.launch.profile else None,
    )


def show_files(items: Iterable[Item], total: int) -> Iterator[Item]:
    """`items` with a bar that is gone at their end."""
    yield from tqdm(
        items, total=total, desc="checking files", unit="file", leave=False, disable=None
    )


def score_columns(validation: Validation | None, names: list[str]) -> Row:
    """The columns of a row that scores fill; empty where a class never occurs."""
    if validation is None:
        return {}
    scores = validation.scores
    row: Row = {"validation_dice": scores.dice, "validation_iou": scores.iou}
    if validation.threshold is not None:
        row["threshold"] = validation.threshold
        row["dice_at_threshold"] = validation.dice_at_threshold
    row["calibration_error"] = validation.calibration_error
    row |= {f"dice_{name}": value for name, value in zip(names, scores.dice_per_class, strict=True)}
    row |= {f"iou_{name}": value for name, value in zip(names, scores.iou_per_class, strict=True)}
    return {key: "" if math.isnan(value) else value for key, value in row.items()}


class CsvWriter:
    """metrics.csv: one row per epoch, on the disk at once.

    Args:
        after: rows of later steps are dropped: a resumed run writes them again.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self.path = path
        rows = self._rows(after) if path.exists() else []
        if rows or path.exists():
            half = path.with_name(path.name + ".tmp")
            with half.open("w", newline="", encoding="utf-8") as file:
                if rows:
                    writer = csv.DictWriter(file, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)
            half.replace(path)
        self.columns = list(rows[0]) if rows else None

    def _rows(self, after: int) -> list[dict[str, str]]:
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [
            row for row in rows if (row.get("step") or "").isdigit() and int(row["step"]) <= after
        ]

    def write(self, row: Row, step: int) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            if self.columns is None:
                self.columns = list(row)
                csv.DictWriter(file, self.columns).writeheader()
            csv.DictWriter(file, self.columns, extrasaction="ignore").writerow(row)

    def close(self) -> None:
        pass


class TensorBoardWriter:
    """TensorBoard's event file in the run folder."""

    def __init__(self, folder: Path, *, after: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder), purge_step=after + 1 if after else None)

    def write(self, row: Row, step: int) -> None:
        for name, value in row.items():
            if isinstance(value, float):
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbWriter:
    """Weights & Biases, for those who ask for it."""

    def __init__(self, name: str | None, folder: Path, settings: dict[str, Any]) -> None:
        import wandb

        self.run: Any = wandb.init(
            project="unet_ddp", name=name, dir=str(folder), config=settings, resume="allow"
        )

    def write(self, row: Row, step: int) -> None:
        self.run.log({key: value for key, value in row.items() if value != ""}, step=step)

    def close(self) -> None:
        self.run.finish()
