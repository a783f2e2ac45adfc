"""Fast paths: they change the time, and nothing else."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main
from tests.test_resume import assert_same_state, last, train
from unet_ddp.checkpoints import file as checkpoint

SLOW = 0.05  # seconds


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


def train_with_slow_files(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py with files that take SLOW seconds each."""
    from unet_ddp.data.dataset import SegmentationDataset

    read = SegmentationDataset.__getitem__

    def slowly(self: SegmentationDataset, key: tuple[int, int]) -> object:
        time.sleep(SLOW)
        return read(self, key)

    SegmentationDataset.__getitem__ = slowly  # type: ignore[method-assign]
    try:
        return call_main("train", argv, folder)
    finally:
        SegmentationDataset.__getitem__ = read  # type: ignore[method-assign]


@pytest.mark.thorough
def test_profile_says_where_the_time_goes(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """Two ranks; each step waits for one slow file, and that is what the summary shows."""
    argv = [
        *data_flags(images), "--width", "2", "--batch-size", "1", "--workers", "0", "--profile",
        "--validation", "17", "--epochs", "3",
    ]  # fmt: skip
    (status, out, _), (_, silent, _) = ranks.run(2, train_with_slow_files, argv, str(tmp_path))
    assert status == 0
    assert "profile of" not in silent
    steps, whole = re.search(r"profile of (\d+) steps, ([\d.]+) ms each:", out).groups()
    parts = {
        name: float(took)
        for name, took in re.findall(r"^  ([a-z-]+(?: [a-z]+)*) +([\d.]+) ms", out, re.M)
    }
    within = parts.pop("all-reduce")
    assert list(parts) == [
        "data wait",
        "host to device",
        "forward",
        "loss",
        "backward",
        "step",
        "other",
    ]
    assert int(steps) == 10
    assert sum(parts.values()) == pytest.approx(float(whole), abs=0.1)
    assert min(parts.values()) >= 0
    assert parts["data wait"] >= 900 * SLOW
    assert 0 < within < parts["forward"] + parts["loss"] + parts["backward"]
    trace = json.loads((tmp_path / "checkpoints" / "profile.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"data wait", "forward", "backward", "aten::convolution"} <= names


# Compiling takes half a minute.
@pytest.fixture(scope="module")
def compiled(ranks: Ranks, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    train(ranks, 2, folder, images, "--compile")
    return folder


@pytest.mark.thorough
def test_compiled_training_is_the_same_training(
    ranks: Ranks, images: Path, tmp_path: Path, compiled: Path
) -> None:
    """To rounding; the files are the same but for the setting."""
    train(ranks, 2, tmp_path, images)
    one, other = last(compiled), last(tmp_path)
    for part in ("model", "ema"):
        assert one[part].keys() == other[part].keys()
        for name, value in one[part].items():
            assert torch.allclose(value, other[part][name], rtol=1e-3, atol=1e-3), name
    assert one["config"].pop("compile") and not other["config"].pop("compile")
    assert one["config"] == other["config"]
    best = checkpoint.load(compiled / "checkpoints" / "best.pt")
    assert best["model"].keys() == one["model"].keys()


@pytest.mark.thorough
def test_compiled_training_resumes_bit_by_bit(
    ranks: Ranks, images: Path, tmp_path: Path, compiled: Path
) -> None:
    train(ranks, 2, tmp_path, images, "--compile", "--max-steps", "3")
    train(ranks, 2, tmp_path, images, "--resume", "--cache", "--save-every-steps", "1")
    assert_same_state(last(compiled), last(tmp_path))
