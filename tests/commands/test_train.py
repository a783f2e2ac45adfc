"""Moments of a whole run that only train.py's own lines decide: in-process, on one rank."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_flags, make_set
from tests.ranks import call_main, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.cli import parse_train
from unet_ddp.commands import train
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.loaders import SampleLoader
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.tuning import SeparationTuner
from unet_ddp.runs import plan
from unet_ddp.runs.folder import RunFolder

COUNT, BUILD, SAVE, READ = train.count_pixels, plan.build_state, checkpoint.save, SegmentationDataset.__getitem__  # fmt: skip
TUNE = SeparationTuner.tune
FLAGS = ["--width", "1", "--batch-size", "2", "--validation", "40", "--workers", "0", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return data_flags(make_set(tmp_path_factory.mktemp("set"), 10, size=(16, 16)))


def run(images: list[str], folder: Path, *more: str, call: Any = call_train) -> tuple[int, str]:
    """Train in `folder`; return the exit status and the output."""
    folder.mkdir(exist_ok=True)
    status, out, err = call([*images, *FLAGS, *more], str(folder))
    assert err == ""
    return status, out


def rows(folder: Path) -> list[dict[str, str]]:
    """Return what metrics.csv has of each epoch, but its seconds."""
    with (folder / "checkpoints" / "metrics.csv").open(newline="") as file:
        names = ("epoch", "step", "loss", "validation_dice")
        return [{name: row[name] for name in names} for row in csv.DictReader(file)]


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").iterdir()}


def test_a_validation_that_a_signal_cuts_short_does_not_count(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is stopped after its first image; it is repeated by --resume."""
    stops: list[StopSignal] = []

    class Noted(StopSignal):
        def __enter__(self) -> StopSignal:
            stops.append(self)
            return super().__enter__()

    def count(state: Any, samples: Iterable[Any], **how: Any) -> Any:
        def cut(samples: Iterator[Any]) -> Iterator[Any]:
            yield next(samples)
            os.kill(os.getpid(), signal.SIGTERM)
            while [*stops[-1].until_stopped([0])]:  # until it is heard
                pass
            yield from samples

        return COUNT(state, cut(iter(samples)) if state.epoch == 1 else samples, **how)

    assert run(images, tmp_path / "a", "--epochs", "3")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(train, "StopSignal", Noted)
        patch.setattr(train, "count_pixels", count)
        status, out = run(images, tmp_path / "b", "--epochs", "3")
    assert status == 143 and "stopped by SIGTERM after step 6; continue with --resume" in out
    assert rows(tmp_path / "b") == rows(tmp_path / "a")[:1]
    assert checkpoint.load(tmp_path / "b" / "checkpoints" / "best.pt")["best"]["epoch"] == 0
    assert "report.html" not in files(tmp_path / "b")
    assert run(images, tmp_path / "b", "--resume")[0] == 0
    assert rows(tmp_path / "b") == rows(tmp_path / "a")


def test_a_ctrl_c_in_the_first_save_is_a_run_to_continue(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user sees a wrong line in the first output, and presses it."""
    begin = RunFolder.begin

    def interrupted(folder: RunFolder, *about: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        begin(folder, *about)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "begin", interrupted)
        status, out = run(images, tmp_path, "--epochs", "1")
    assert status == 130 and out.endswith(
        "stopped by SIGINT after step 0; continue with --resume\n"
    )
    assert {"last.pt", "config.yaml"} <= files(tmp_path)
    assert run(images, tmp_path, "--resume")[0] == 0
    assert len(rows(tmp_path)) == 1


def test_a_run_without_one_good_step_has_no_best(images: list[str], tmp_path: Path) -> None:
    _, _, err = call_train(
        [*images, *FLAGS, "--class-weights", "1e38", "1e38", "--epochs", "1"], str(tmp_path)
    )
    assert "error: all 3 steps were skipped, as loss or gradients are not finite" in err
    assert "best.pt" not in files(tmp_path)


@pytest.mark.parametrize(
    ("limits", "step", "is_over"),
    [
        (["--stop-after", "2epochs"], 6, True),  # the last epoch of all
        (["--stop-after", "1epochs"], 3, False),
        (["--stop-after", "2"], 2, False),
    ],
)
def test_a_limit_stops_a_run_that_has_more_to_do(
    images: list[str], tmp_path: Path, limits: list[str], step: int, is_over: bool
) -> None:
    call = partial(call_main, "train")
    status, out = run(images, tmp_path, "--epochs", "2", *limits, call=call)
    assert status == 0
    assert (f"stopped as asked after step {step}; continue" in out) is not is_over
    assert {"report.html", "samples.png"} <= files(tmp_path) or not is_over
    assert "report.html" not in files(tmp_path) or is_over
    position = checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"]
    assert 3 * position["epoch"] + position["step"] == step
    if not is_over:
        assert (
            len(rows(tmp_path)) == step // 3 if step >= 3 else "metrics.csv" not in files(tmp_path)
        )


def test_two_steps_are_read_ahead_of_the_one_that_is_taken(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that one rank can't read is then known to all before its step, of --accumulate too."""
    read: list[Any] = []
    seen: list[int] = []

    def build(*args: Any, **how: Any) -> Any:
        state = BUILD(*args, **how)
        read.clear()
        state.optimizer.register_step_pre_hook(lambda *_: seen.append(len(read)))
        return state

    monkeypatch.setattr(plan, "build_state", build)
    monkeypatch.setattr(
        SegmentationDataset, "__getitem__", lambda self, key: read.append(key) or READ(self, key)
    )
    flags = ["--accumulate", "2", "--validation", "0", "--stop-after", "1"]
    assert run(images, tmp_path, "--epochs", "1", *flags)[0] == 0
    assert seen == [8]  # two steps of two batches of two


def test_no_save_is_running_when_validation_forks(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork in the middle of a write can hang the child: a lock that nobody gives back."""
    saving, validating, found = threading.Event(), threading.Event(), []

    def save(*args: Any, **how: Any) -> None:
        saving.set()
        validating.wait(0.3)
        SAVE(*args, **how)
        saving.clear()

    def count(*args: Any, **how: Any) -> Any:
        found.append(saving.is_set())
        validating.set()
        return COUNT(*args, **how)

    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(train, "count_pixels", count)
    monkeypatch.setattr(SampleLoader, "forks", property(lambda self: True))
    assert run(images, tmp_path, "--epochs", "1", "--save-every-steps", "3")[0] == 0
    assert found == [False]


def test_a_refused_login_deletes_no_run(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue: --overwrite deleted the run, and then W&B had no account."""
    wandb = pytest.importorskip("wandb")

    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("No API key configured")

    monkeypatch.setattr(wandb, "init", refuse)
    assert run(images, tmp_path, "--epochs", "1")[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()}
    status, _, err = call_main("train", [*images, *FLAGS, "--overwrite", "--wandb"], str(tmp_path))
    assert status == 2 and "--wandb: No API key configured" in err
    assert {p.name: p.read_bytes() for p in (tmp_path / "checkpoints").iterdir()} == before


def test_only_results_of_evaluate_go_with_the_run(images: list[str], tmp_path: Path) -> None:
    assert run(images, tmp_path, "--epochs", "1")[0] == 0
    assert call_main("unet_ddp.commands.evaluate", [], str(tmp_path))[0] == 0
    results = tmp_path / "checkpoints" / "evaluation"
    (results / "notes.txt").write_text("mine")
    assert (results / "scores.json").is_file()
    assert run(images, tmp_path, "--epochs", "1", "--overwrite")[0] == 0
    assert [path.name for path in results.iterdir()] == ["notes.txt"]


def test_a_signal_while_the_separation_is_chosen_repeats_the_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice made on a part of the images is neither saved nor scored."""
    folder = make_set(tmp_path / "set", 10, size=(16, 16))
    for path in (folder / "masks").iterdir():
        numbers = np.zeros((16, 16), np.uint8)
        numbers[2:7, 2:12], numbers[9:14, 4:14] = 1, 2
        Image.fromarray(numbers).save(path)
    images = [*data_flags(folder), "--instances"]
    stopped: list[int] = []

    def tune(self: Any, *args: Any, watch: Any) -> Any:
        if not stopped:
            stopped.append(os.getpid())
            os.kill(os.getpid(), signal.SIGTERM)
            while [*watch([0])]:  # until it is heard
                pass
        return TUNE(self, *args, watch=watch)

    assert run(images, tmp_path / "a", "--epochs", "2")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(SeparationTuner, "tune", tune)
        status, out = run(images, tmp_path / "b", "--epochs", "2")
    assert status == 143 and "continue with --resume" in out and stopped
    assert not {"best.pt", "metrics.csv"} & files(tmp_path / "b")
    assert run(images, tmp_path / "b", "--resume")[0] == 0
    assert rows(tmp_path / "b") == rows(tmp_path / "a")


def test_a_budget_counts_the_imports(
    images: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []

    def prepare(config: Any, folder: Any, world: Any, start: float) -> Any:
        began.append(start)
        raise UserError("enough")

    monkeypatch.setattr(train, "prepare", prepare)
    config = parse_train([*images, "--checkpoints", str(tmp_path / "checkpoints")])
    with pytest.raises(UserError, match="enough"):
        train.train(config, World())
    used = time.process_time()
    assert used > 1  # seconds, of this process: torch was imported
    assert time.monotonic() - began[0] == pytest.approx(used, abs=0.5)
    with pytest.raises(UserError, match="enough"):
        train.train(config, World(), began=7.0)
    assert began[1] == 7
