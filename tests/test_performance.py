"""Fast paths: they change the time, and nothing else."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_train
from tests.test_resume import assert_same_state, last, train
from unet_ddp.data.dataset import SegmentationDataset

pytestmark = pytest.mark.thorough
SLOW = 0.05  # seconds


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


def train_with_slow_files(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py with files that take SLOW seconds each."""
    read = SegmentationDataset.__getitem__

    def slowly(self: SegmentationDataset, key: tuple[int, int]) -> Any:
        time.sleep(SLOW)
        return read(self, key)

    with mock.patch.object(SegmentationDataset, "__getitem__", slowly):
        return call_train(argv, folder)


def test_profile_says_where_the_time_goes(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """Two ranks; each step waits for one slow file, and that is what the summary shows."""
    argv = [*data_flags(images), "--width", "2", "--batch-size", "1", "--workers", "0"]
    argv += ["--validation", "17", "--epochs", "3", "--profile"]
    (status, out, _), (_, silent, _) = ranks.run(2, train_with_slow_files, argv, str(tmp_path))
    assert status == 0 and "profile of" not in silent
    found = re.search(r"profile of (\d+) steps, ([\d.]+) ms each:", out)
    assert found is not None and found[1] == "10"
    lines = re.findall(r"^  ([a-z-]+(?: [a-z]+)*) +([\d.]+) ms", out, re.M)
    parts = {name: float(took) for name, took in lines}
    within = parts.pop("all-reduce")
    names = ["data wait", "host to device", "forward", "loss", "backward", "step", "other"]
    assert list(parts) == names and min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(float(found[2]), abs=0.1)
    assert parts["data wait"] >= 900 * SLOW
    assert 0 < within < parts["forward"] + parts["loss"] + parts["backward"]
    trace = json.loads((tmp_path / "checkpoints" / "profile.json").read_text())
    events = {event.get("name") for event in trace["traceEvents"]}
    assert {"data wait", "forward", "backward", "aten::convolution"} <= events


@pytest.mark.release
def test_compiled_training_is_the_same_training_and_resumes_bit_by_bit(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """The same to rounding; the files are the same but for the setting."""
    plain, compiled, stopped = (tmp_path / name for name in ("plain", "compiled", "stopped"))
    train(ranks, 2, plain, images)
    train(ranks, 2, compiled, images, "--compile")
    one, other = last(compiled), last(plain)
    for part in ("model", "ema"):
        torch.testing.assert_close(dict(one[part]), dict(other[part]), rtol=1e-3, atol=1e-3)
    assert one["config"].pop("compile") and not other["config"].pop("compile")
    assert one["config"] == other["config"]
    train(ranks, 2, stopped, images, "--compile", "--stop-after", "3")
    train(ranks, 2, stopped, images, "--resume", "--cache", "--save-every-steps", "1")
    assert_same_state(one, last(stopped))
