"""Runs on data that breaks in mid-run, and predictions of images like those of the run."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tifffile
import torch

from tests.checks.catalogue import cut
from tests.checks.test_check import make_tiffs, prepared
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_train
from tests.reading import read_image
from tests.test_resume import assert_same_state, last
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs import plan

FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "1", "--workers", "0",
         "--augmentation", "none"]  # fmt: skip


def test_prediction_sees_what_training_saw(
    ranks: Ranks, tmp_path: Path, rng: np.random.Generator
) -> None:
    """The checkpoint's numbers, not the image's: half as bright an image is another image."""
    make_tiffs(tmp_path, "uint16", 1, rng)
    argv = [*data_flags(tmp_path), *FLAGS]
    ((status, _, err),) = ranks.run(1, call_train, argv, str(tmp_path))
    assert status == 0, err
    data = prepared(tmp_path)
    predictor = Predictor.from_checkpoint(tmp_path / "checkpoints" / "best.pt", device="cpu")
    assert predictor.preprocessing == Preprocessing.for_data(data.format, data.range, scale=1.0)
    bright, dark = tmp_path / "imgs" / "fx.tif", tmp_path / "dark.tif"
    tifffile.imwrite(dark, tifffile.imread(bright) // 2)
    means = [
        predictor.preprocessing(torch.from_numpy(read_image(path, predictor.format)[None])).mean()
        for path in (bright, dark)
    ]
    assert means[0] > means[1] + 0.5


def breaking_run(folder: str, argv: list[str], names: list[str]) -> tuple[int, str, str]:
    """Run train.py; its images `names` break after its second step."""

    build_state = plan.build_state

    def build(*args: Any) -> Any:
        state = build_state(*args)

        def break_files(*_: Any) -> None:
            if state.done + 1 == 2 and os.environ["RANK"] == "0":
                for name in names:
                    cut(Path(folder) / "imgs" / name)

        state.optimizer.register_step_post_hook(break_files)
        return state

    with mock.patch.object(plan, "build_state", build):
        return call_train(argv, folder)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_file_that_breaks_in_mid_run_costs_nothing(
    ranks: Ranks, tmp_path: Path, size: int
) -> None:
    """The run stops and names it before the step that needs it, saved; once repaired, it resumes."""
    for name in ("whole", "broken"):
        make_set(tmp_path / name, 14)
    argv = [*data_flags(tmp_path / "whole"), *FLAGS]
    outcomes = ranks.run(size, call_train, argv, str(tmp_path / "whole"))
    assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    broken = tmp_path / "broken"
    names = [path.name for path in (broken / "imgs").iterdir()]
    shutil.copytree(broken / "imgs", tmp_path / "kept")
    argv = [*data_flags(broken), *FLAGS]
    outcomes = ranks.run(size, breaking_run, str(broken), argv, names)
    assert [status for status, _, _ in outcomes] == [2] * size
    (error,) = "".join(err for _, _, err in outcomes).splitlines()
    assert error.startswith("error: ") and "x.png: corrupt or truncated" in error
    stopped = last(broken)["position"]
    assert stopped["epoch"] == 0 and stopped["step"] in (3, 4)  # two steps were read ahead
    shutil.copytree(tmp_path / "kept", broken / "imgs", dirs_exist_ok=True)
    outcomes = ranks.run(size, call_train, ["--resume", "--workers", "0"], str(broken))
    assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    assert_same_state(last(broken), last(tmp_path / "whole"), ema=False)


def breaking_run_on_a_slow_disk(folder: str, argv: list[str], names: list[str]) -> tuple[int, int]:
    """Return its status, and the step that is on the disk when this rank has left."""
    save = checkpoint.save

    def save_slowly(*args: Any, **how: Any) -> None:
        time.sleep(1)
        save(*args, **how)

    with mock.patch.object(checkpoint, "save", save_slowly):
        status, _, _ = breaking_run(folder, argv, names)
    return status, last(Path(folder))["position"]["step"]


def test_no_rank_leaves_before_a_stopped_run_is_saved(ranks: Ranks, tmp_path: Path) -> None:
    """A launcher ends the others as soon as one has left, the one that writes among them."""
    make_set(tmp_path, 14)
    names = [path.name for path in (tmp_path / "imgs").iterdir()]
    argv = [*data_flags(tmp_path), *FLAGS]
    outcomes = ranks.run(2, breaking_run_on_a_slow_disk, str(tmp_path), argv, names)
    assert all(status == 2 and step in (3, 4) for status, step in outcomes), outcomes
