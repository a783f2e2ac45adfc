"""Lines, metrics.csv and TensorBoard of a run; silent off the main rank."""

from __future__ import annotations

import csv
import errno
import math
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.tiny import make_data, make_network, make_state
from unet_ddp.config import DataConfig, LaunchConfig, OptimizationConfig, RunConfig, TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.metrics.scores import Scores, Validation
from unet_ddp.runs import tracking
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.tracking import Tracker, console
from unet_ddp.runs.writers import (
    CsvWriter,
    RunInfo,
    TensorBoardWriter,
    open_files,
    open_named,
    score_columns,
)
from unet_ddp.settings import with_values
from unet_ddp.training.state import Schedule
from unet_ddp.training.step import StepReport

NAN = math.nan


def validation(dice: float = 0.5, threshold: float | None = 0.25) -> Validation:
    scores = Scores([0.9, dice], [0.8, 0.375], [], [], is_binary=True)
    at = 0.75 if threshold else None
    score = at if at and not math.isnan(dice) else dice
    return Validation(scores, threshold, at, 0.125, score)


def report(*, finite: bool = True) -> StepReport:
    return StepReport(torch.tensor([1.5, 0.5, 1.0]), 1e-2, torch.tensor(finite), [0])


# -- lines ----------------------------------------------------------------------------------------


def test_lines_are_printed_on_the_main_rank_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console(World())("one\nline \x1b[0m")
    console(World(1, 2))("silence")
    assert capsys.readouterr().out == "one\\nline \\x1b[0m\n"


# -- the tracker ----------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tracking, "time", clock)
    return clock


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The progress bars that are made, as on a terminal."""
    made: list[Any] = []

    class Noted(tracking.tqdm):  # type: ignore[misc]
        def __init__(self, *, disable: bool | None, **how: Any) -> None:
            super().__init__(disable=disable or False, **how)
            made.append(self)

    monkeypatch.setattr(tracking, "tqdm", Noted)
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world on a GPU, whose answers come late."""
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    return World(device=torch.device("cuda"))


@contextmanager
def open_tracker(
    folder: Path,
    *,
    world: World | None = None,
    state: Any = None,
    log_uncompiled: Any = None,
    errors: list[UserError] | None = None,
    data: PreparedData | None = None,
    scale: float = 1.0,
    crop_size: tuple[int, int] | None = None,
    **launch: Any,
) -> Iterator[Tracker]:
    config = TrainConfig(
        optimization=OptimizationConfig(epochs=2),
        run=RunConfig(checkpoints=str(folder)),
        data=DataConfig(scale=scale, crop_size=crop_size),
        launch=LaunchConfig(**launch),
    )
    training = SimpleNamespace(sampler=SimpleNamespace(per_step=3))
    loaders: Any = SimpleNamespace(training=training, validation=None)
    data = data or make_data()
    state = state or make_state()
    errors = [] if errors is None else errors
    world = world or World()
    stop: Any = SimpleNamespace(request_stop=errors.append, reason=None, raise_error=lambda: None)
    how = (loaders, world, stop, log_uncompiled, StartPoint())
    with Tracker(config, data, state, *how) as tracker:
        yield tracker


def test_images_per_second_are_of_training_alone(tmp_path: Path, clock: Clock) -> None:
    state = make_state()
    with open_tracker(tmp_path, world=World(size=2), state=state) as tracker:
        assert tracker.images_per_second == 0
        clock.now += 50.0  # the first batches of another epoch
        for _ in range(2):
            tracker.begin_epoch(state)
            clock.now += 1.0
            tracker.step(report(), 1, waited=0.25)
            assert tracker.images_per_second == 6.0  # 3 images on each of 2 ranks
            clock.now += 2.0
            tracker.step(report(), 2, waited=0.75)
            assert tracker.images_per_second == 4.0
            assert tracker.data_wait == 0.25
            clock.now += 1.0  # a GPU does its last steps
            tracker.end_steps()
            assert tracker.images_per_second == 3.0
            clock.now += 20.0  # validation
            assert tracker.images_per_second == 3.0
            assert tracker.data_wait == 0.1875


def test_an_epoch_is_a_line_and_a_row(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    state = make_state(steps=4)
    state.step, state.best = 4, 0.25
    state.sums = torch.tensor([6.0, 1.5, 4.5], dtype=torch.float64)
    state.skipped += torch.tensor([1, 7])  # one of 4 steps: the mean is of the others
    with open_tracker(tmp_path, state=state) as tracker:
        state.epoch = 1
        tracker.log(["one", "two"], [], ["three"])
        tracker.begin_epoch(state)
        clock.now += 4.0
        tracker.step(report(), 7, waited=1.0)
        tracker.step(report(finite=False), 8, waited=1.0)
        tracker.end_steps()
        clock.now += 1.0
        tracker.log_epoch(state, validation())
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == ["one", "two", "three"]
    assert out[3].startswith("warning: step 8 skipped: non-finite gradients; images: a.png")
    assert out[4:] == [
        "epoch 2: loss 2.0000, validation Dice 0.7500 at threshold 0.250 (best), 0.5000 at 0.5, "
        "1.5 images/s, 25% waiting for data, 5.0 s"
    ]
    (row,) = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    assert row == {
        "epoch": "2",
        "step": "8",
        "learning_rate": str(state.schedule.at(7)),
        "loss": "2.0",
        "dice_loss": "0.5",
        "cross_entropy": "1.5",
        "validation_dice": "0.5",
        "validation_iou": "0.375",
        "threshold": "0.25",
        "dice_at_threshold": "0.75",
        "validation_score": "0.75",
        "calibration_error": "0.125",
        "dice_0": "0.9",
        "dice_255": "0.5",
        "iou_0": "0.8",
        "iou_255": "0.375",
        "skipped_steps": "7",
        "images_per_second": "1.5",
        "data_wait": "0.25",
        "seconds": "5.0",
    }


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "not validated, "),
        (validation(0.2, None), "validation Dice 0.2000, 0.0 images/s"),  # worse than before
        (validation(0.25, None), "validation Dice 0.2500 (best), 0.0 images/s"),
        (validation(NAN), "validation Dice: nothing to score, 0.0 images/s"),
        (
            replace(validation(0.3, None), score=0.6, score_name="mean AP"),
            "validation mean AP 0.6000 (best), Dice 0.3000",
        ),
    ],
)
def test_the_line_says_what_validation_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], found: Validation | None, text: str
) -> None:
    state = make_state()
    state.step, state.best = 4, 0.25
    with open_tracker(tmp_path, state=state) as tracker:
        tracker.begin_epoch(state)
        tracker.log_epoch(state, found)
    assert f"epoch 1: loss 0.0000, {text}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("score", "text"),
    [(0.5, "best validation Dice 0.5000 in epoch 2"), (NAN, "validation has nothing to score")],
)
def test_the_end_of_patience_names_the_best_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], score: float, text: str
) -> None:
    state = make_state(steps=4, patience=1, schedule=Schedule(1.0, 400))
    for _ in range(2):
        state.step = 4
        state.finish_epoch(validation(score, None))
    with open_tracker(tmp_path, state=state) as tracker:
        tracker.log_epoch(state, None)
        tracker.end_epoch(state)
    assert f"--patience 1: {text}; the learning rate falls" in capsys.readouterr().out


def test_other_ranks_are_silent_and_judge_their_steps_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "on_main", lambda *_: None)  # as on all ranks but the main one
    state = make_state()
    state.step = 4
    with open_tracker(tmp_path, world=World(1, 2), max_bad_steps=2, profile=True) as tracker:
        tracker.begin_epoch(state)
        tracker.step(report(finite=False), 1, waited=0.0)
        tracker.log_epoch(state, None)
        with pytest.raises(RunError, match="stopped after 2"):
            tracker.step(report(finite=False), 2, waited=0.0)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_skipped_steps_are_counted_over_all_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = make_state()
    state.skipped = torch.tensor([2, 5])  # of this epoch, and of the run
    with open_tracker(tmp_path, state=state, max_bad_steps=9) as tracker:
        tracker.begin_epoch(state)
        tracker.step(report(finite=False), 8, waited=0.0)
    assert "(1 in a row, 6 in all)" in capsys.readouterr().out


def test_the_end_of_training_judges_what_a_gpu_has_not_answered(tmp_path: Path, gpu: World) -> None:
    with open_tracker(tmp_path, world=gpu, max_bad_steps=1) as tracker:
        tracker.step(report(finite=False), 1, waited=0.0)
        with pytest.raises(RunError, match="step 1 skipped"):
            tracker.end_steps()


def test_a_bar_shows_loss_and_rate_now_and_then(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str], bars: list[Any]
) -> None:
    state = make_state()
    state.epoch = 1
    (tmp_path / "metrics.csv").write_text("epoch,step\n1,4\n", encoding="utf-8")
    with open_tracker(tmp_path, state=state) as tracker:
        tracker.begin_epoch(state)
        (bar,) = bars
        assert (bar.total, bar.n) == (8, 4)
        clock.now += 0.4
        tracker.step(report(), 5, waited=0.1)
        assert not bar.postfix  # twice a second at most
        clock.now += 0.1
        tracker.step(report(), 6, waited=0.25)
        assert (bar.n, bar.desc) == (6, "epoch 2/2: ")
        assert bar.postfix == "loss 1.5000, rate 1.00e-02, 12.0 images/s, data 50%"
    assert capsys.readouterr().out == ""
    with open_tracker(tmp_path, state=state, world=World(1, 2)):
        assert bars[1].disable


def test_a_bar_on_a_gpu_is_of_the_steps_that_it_has_done(
    tmp_path: Path, clock: Clock, bars: list[Any], gpu: World
) -> None:
    """Two steps ago: the loss of the last one would have to be waited for."""
    with open_tracker(tmp_path, world=gpu) as tracker:
        tracker.begin_epoch(make_state())
        for step in range(1, 5):
            clock.now += 1.0
            losses = torch.tensor([float(step), 0.0, 0.0])
            tracker.step(replace(report(), losses=losses), step, waited=0.0)
            assert bool(bars[0].postfix) == (step > 2)
        assert bars[0].postfix == "loss 2.0000, rate 1.00e-02, 1.5 images/s, data 0%"
        tracker.end_steps()
        assert tracker.images_per_second == 3.0


def test_a_profile_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_tracker(tmp_path, profile=True) as tracker:
        for step in range(5):
            tracker.step(report(), step, waited=0.0)
    assert capsys.readouterr().out.startswith("profile of 2 steps, ")
    assert (tmp_path / "profile.json").exists()


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_not_compiled_is_said_once_after_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compiled: bool
) -> None:
    def say(log: Callable[[str], None]) -> None:
        log("compile: 1 graph break")

    with open_tracker(tmp_path, log_uncompiled=say if compiled else None) as tracker:
        said = []
        for step in range(2):
            tracker.step(report(), step, waited=0.0)
            said.append(capsys.readouterr().out)
    assert said == ["compile: 1 graph break\n" if compiled else "", ""]


class BadWriter:
    def epoch(self, row: Any) -> None:
        raise OSError("disk full")

    def close(self, ending: Ending) -> None:
        raise OSError("disk full")


def test_a_full_disk_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    good = SimpleNamespace(epoch=lambda row: written.append(row["step"]))
    monkeypatch.setattr(tracking, "open_files", lambda *_: [BadWriter(), good])
    state = make_state()
    state.step = 4
    with open_tracker(tmp_path, state=state) as tracker:
        tracker.begin_epoch(state)
        tracker.log_epoch(state, None)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == [
        "warning: BadWriter: disk full; this row is written with the next",
        "warning: BadWriter: disk full; its last rows are lost",
    ]
    assert written == [4]


# -- writers --------------------------------------------------------------------------------------


def test_columns_of_scores() -> None:
    assert score_columns(None, ["a", "b"]) == {}
    row = score_columns(validation(NAN), ["a", "b"])
    assert list(row) == [
        "validation_dice", "validation_iou", "threshold", "dice_at_threshold", "validation_score",
        "calibration_error", "dice_a", "dice_b", "iou_a", "iou_b",
    ]  # fmt: skip
    assert (row["validation_dice"], row["dice_b"], row["dice_a"]) == ("", "", 0.9)
    three = replace(
        validation(threshold=None), scores=Scores([1, 1, 1], [1, 1, 1], [], [], is_binary=False)
    )
    assert "threshold" not in score_columns(three, ["a", "b", "c"])
    assert "dice_at_threshold" not in score_columns(three, ["a", "b", "c"])


def test_a_class_has_no_column_of_another_meaning() -> None:
    row = {"dice_loss": 0.5} | score_columns(validation(), ["loss", "at_threshold"])
    assert (row["dice_loss"], row["dice_at_threshold"]) == (0.5, 0.75)
    assert [name for name in row if name.endswith("_")] == ["dice_loss_", "dice_at_threshold_"]


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").symlink_to(tmp_path / "victim")
    writer = CsvWriter(tmp_path / "metrics.csv")
    with pytest.raises(OSError, match="symbolic links"):
        writer.epoch({"epoch": 1, "step": 2})
    assert not (tmp_path / "victim").exists()


def test_rows_after_the_resumed_step_are_dropped_and_columns_are_added(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = CsvWriter(path)
    for step in (5, 10, 15):
        first.epoch({"step": step, "dice": step / 10, "old": "x, y"})
    first.close()
    with path.open("a") as file:
        file.write("cut")  # a kill in the middle of a row
    resumed = CsvWriter(path, after=10)
    assert [row["step"] for row in rows(path)] == ["5", "10"]
    resumed.epoch({"step": 15, "new": 7, "dice": 0.9})
    assert rows(path) == [
        {"step": "5", "dice": "0.5", "old": "x, y", "new": ""},
        {"step": "10", "dice": "1.0", "old": "x, y", "new": ""},
        {"step": "15", "dice": "0.9", "old": "", "new": "7"},
    ]
    resumed.epoch({"step": 20, "new": 8, "dice": 1})  # as --loss may have other terms
    assert rows(path)[3:] == [{"step": "20", "dice": "1", "old": "", "new": "8"}]
    assert {found.name for found in tmp_path.iterdir()} == {"metrics.csv"}


@pytest.mark.parametrize("room", [0, 3])
def test_a_disk_that_takes_a_part_of_a_row_gets_it_whole_with_the_next(
    tmp_path: Path, room: int
) -> None:
    """Issue: the part and the next row were one line, and the run could not be resumed."""
    path, limit = tmp_path / "metrics.csv", resource.RLIMIT_FSIZE
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = CsvWriter(path)
    try:
        for epoch in (1, 2, 3, 4):
            full = path.stat().st_size + room if epoch == 3 else resource.RLIM_INFINITY
            resource.setrlimit(limit, (full, resource.RLIM_INFINITY))
            with pytest.raises(OSError) if epoch == 3 else nullcontext():
                writer.epoch({"epoch": epoch, "step": epoch, "loss": 0.123456789})
    finally:
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, before)
    assert [row["epoch"] for row in rows(path)] == ["1", "2", "3", "4"]
    assert {row["loss"] for row in rows(path)} == {"0.123456789"}


def test_a_row_that_the_disk_refused_is_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CsvWriter(tmp_path / "metrics.csv")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", mock.Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="full"):
            writer.epoch({"epoch": 1, "step": 2})
    assert writer.path.stat().st_size == 0
    writer.close()
    assert rows(writer.path) == [{"epoch": "1", "step": "2"}]


def test_a_full_disk_keeps_the_columns_of_a_new_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one still finds a heading with all its columns."""
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    for n, row in enumerate(({"step": 1, "a": 1}, {"step": 2, "a": 1, "b": 1}), start=1):
        with monkeypatch.context() as patch:
            for name in ("replacing", "open_own"):
                full = mock.Mock(side_effect=OSError("full"))
                patch.setattr(f"unet_ddp.runs.writers.{name}", full)
            with pytest.raises(OSError, match="full"):
                writer.epoch(row)
        writer.epoch({**row, "step": 5 * n})
        assert [*rows(path)[-1]] == [*row] and len(rows(path)) == 2 * n


def test_a_resume_before_the_first_row_starts_with_the_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    CsvWriter(path).epoch({"step": 5, "a": 1})
    writer = CsvWriter(path, after=4)
    assert path.read_text() == ""
    writer.epoch({"step": 5, "b": 2})
    assert rows(path) == [{"step": "5", "b": "2"}]
    assert CsvWriter(tmp_path / "new.csv").columns == []
    assert not (tmp_path / "new.csv").exists()


def test_class_names_that_are_no_text_become_escapes(tmp_path: Path) -> None:
    row = score_columns(validation(), ["\udcff", "a\x1bb"])
    assert [name for name in row if name.startswith("dice_")] == [
        "dice_at_threshold", r"dice_\udcff", r"dice_a\x1bb",
    ]  # fmt: skip
    (tmp_path / "r\udcff").mkdir()
    CsvWriter(tmp_path / "r\udcff" / "metrics.csv").epoch(row)
    assert r",iou_\udcff,iou_a\x1bb" in (tmp_path / "r\udcff" / "metrics.csv").read_text()


def test_every_writer_is_opened_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps of the second epoch are saved, but it was killed after its row: this is written again."""

    def opened(*args: Any, **how: Any) -> Any:
        return args, how

    monkeypatch.setattr("unet_ddp.runs.writers.TensorBoardWriter", opened)
    monkeypatch.setattr("unet_ddp.extras.wandb.writer.WandbWriter", opened)
    where = {"checkpoints": str(tmp_path), "exp_name": "one"}
    config, folder = with_values(TrainConfig(), {"wandb": True, **where}), tmp_path / "one"
    state: Any = SimpleNamespace(epoch=1, step=7, steps_per_epoch=7, done=14)
    folder.mkdir()
    (folder / "metrics.csv").write_text("epoch,step\n1,7\n2,14\n")
    images: Any = {(0, 0): "first image"}
    loaders: Any = SimpleNamespace(validation=SimpleNamespace(dataset=images))
    (tracked,) = open_named(config, state, loaders, print)
    rows, events = open_files(config, state)
    assert isinstance(rows, CsvWriter) and rows.path == folder / "metrics.csv"
    assert rows.path.read_text().split() == ["epoch,step", "1,7"]
    assert events == ((folder,), {"after": 7})
    info = RunInfo(folder, "one", config.to_dict(), state, images, print)
    assert tracked == ((info,), {})
    loaders.validation = None
    assert open_named(with_values(config, {"wandb": False}), state, loaders, print) == []


def test_tensorboard_has_the_floats(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardWriter(tmp_path)
    writer.epoch({"epoch": 1, "step": 4, "loss": 0.5, "dice": ""})
    writer.epoch({"epoch": 2, "step": 5, "loss": 0.25})
    (events,) = tmp_path.iterdir()
    events.rename(tmp_path / "events.out.tfevents.1.host")  # of an earlier second
    resumed = TensorBoardWriter(tmp_path, after=4)
    resumed.epoch({"step": 8, "loss": 0.75})
    found = EventAccumulator(str(tmp_path)).Reload()
    assert found.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(4, 0.5), (8, 0.75)]


@pytest.mark.parametrize("step", ["", "²", "9" * 5000, "4.5", "11", "x"])
def test_a_resumed_run_drops_rows_of_no_step_of_its_own(tmp_path: Path, step: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f"step,loss\n10,1.5\n{step},2.5\n", encoding="utf-8")
    CsvWriter(path, after=10)
    assert path.read_text(encoding="utf-8").split() == ["step,loss", "10,1.5"]


def test_rows_that_another_program_has_changed_are_kept_and_missed(tmp_path: Path) -> None:
    """A spreadsheet of other languages saves with semicolons: no row has a step any more."""
    path, lines = tmp_path / "metrics.csv", list[str]()
    config = TrainConfig(run=RunConfig(checkpoints=str(tmp_path), exp_name="."))
    state = SimpleNamespace(epoch=2, steps_per_epoch=5)

    def resume() -> None:
        open_files(config, state, lines.append)[0].close()  # type: ignore[arg-type]

    path.write_text("epoch,step\n1,5\n2,10\n3,15\n", encoding="utf-8")
    resume()
    assert lines == [] and len(rows(path)) == 2
    changed = "epoch;step\r\n1;5\r\n2;10\r\n"
    path.write_text(changed, encoding="utf-8", newline="")
    resume()
    assert (tmp_path / "metrics.1.csv").read_bytes().decode() == changed
    assert "0 rows for 2 epochs done; the file that was there is" in lines.pop()
    resume()
    assert lines == [f"warning: {path}: 0 rows for 2 epochs done"]


def test_a_disk_that_fails_when_a_run_is_resumed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step\n1,5\n", encoding="utf-8")
    config = TrainConfig(run=RunConfig(checkpoints=str(tmp_path), exp_name="."))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"metrics\.csv: can't be written: Input/output error; "):
        open_files(config, SimpleNamespace(epoch=1, steps_per_epoch=5))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"step\n\xff", b"step\n1,2\n", b"step\n" + b"x" * 200_000])
def test_a_corrupt_metrics_file_is_named_and_kept(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"metrics.csv: corrupt"):
        CsvWriter(path, after=10)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("size", "seconds", "scale", "crop", "said"),
    [
        ((800, 640), 120, 1.0, None, "--scale 0.5 takes about "),
        ((800, 640), 1200, 0.5, None, "--scale 0.125 takes about "),  # half is too long, too
        ((800, 640), 120, 1.0, (256, 256), "--budget 30m trains"),  # crops stay as large
        ((80, 640), 120, 1.0, None, "--budget 30m trains"),  # too small
        (None, 120, 1.0, None, "--budget 30m trains"),
        ((800, 640), 1, 1.0, None, None),
    ],
)
def test_a_long_run_on_a_cpu_names_ways_to_shorten_it_once(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str],
    size: tuple[int, int] | None, seconds: float, scale: float, crop: tuple[int, int] | None,
    said: str | None,
) -> None:  # fmt: skip
    state = make_state(steps=10)  # in two epochs: 17 are left after the third
    state.step = 3
    data = replace(make_data(), one_size=size, crop_size=crop)
    with open_tracker(tmp_path, state=state, data=data, scale=scale, crop_size=crop) as tracker:
        tracker.begin_epoch(state)
        clock.now += 1000.0  # the first step
        for k in range(6):
            tracker.step(report(), k + 1, waited=0.0)
            clock.now += seconds
    lines = [line for line in capsys.readouterr().out.splitlines() if "to go" in line]
    assert len(lines) == (said is not None)
    if said:
        begin = f"about {17 * seconds / 60:.0f} min" if seconds < 1000 else "about 5.7 h"
        assert lines[0].startswith(f"{begin} to go, without validation; in a new run, {said}")
        assert lines[0].endswith("--budget 30m trains as many epochs as fit")
    if said and "--scale" in said:
        found = re.search(r"takes about (\d+(?:\.\d+)?) (min|h|s) \(measured\)", lines[0])
        assert found, lines
        whole = float(found[1]) * {"s": 1, "min": 60, "h": 3600}[found[2]] / (20 * seconds)
        assert 0 <= whole < 0.9  # about a quarter, or a sixteenth, on an idle machine


def test_short_epochs_are_timed_too(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    state = make_state(steps=2)
    with open_tracker(tmp_path, state=state) as tracker:
        tracker.begin_epoch(state)
        for k in range(2):
            state.step += 1
            clock.now += 3600.0
            tracker.step(report(), k + 1, waited=0.0)
    assert "about 2.0 h to go" in capsys.readouterr().out


def test_to_measure_a_scale_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    state = make_state(make_network(dropout=0.5), steps=10)
    state.network[1].eval()  # as of a frozen encoder
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    chance = torch.get_rng_state()
    data = replace(make_data(), one_size=(160, 160))
    with open_tracker(tmp_path, state=state, data=data) as tracker:
        tracker.begin_epoch(state)
        for k in range(3):
            clock.now += 900.0
            tracker.step(report(), k + 1, waited=0.0)
    assert [module.training for module in state.network] == [True, False, True, True, True]
    assert torch.equal(torch.get_rng_state(), chance)
    for name, value in state.network.state_dict().items():
        assert torch.equal(value, before[name]), name
