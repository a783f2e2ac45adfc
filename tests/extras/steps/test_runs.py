"""Runs whose epochs are numbers of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from tests import faults
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, warm_python
from tests.test_resume import (
    FLAGS,
    SAMPLED,
    assert_same_state,
    call_main_in_float64,
    last,
    resume,
    rows,
)
from unet_ddp.checkpoints import file as checkpoint

# 10 images to train on, of which 3 epochs take 24: an epoch ends within a pass.
STEPS = ["--epochs", "3", "--epoch-steps", "4", "--batch-size", "2", "--validation-images", "1"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


def test_a_killed_run_of_epochs_of_steps_ends_as_one_that_was_not(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """Killed in the second epoch, which begins and ends within a pass; then stopped within the third."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    argv = [*data_flags(images), *FLAGS, *SAMPLED.split(), *STEPS, "--save-every-steps", "3"]
    said = resume(ranks, 1, whole, *argv)
    assert "validation: 1 of 2 images after each epoch" in said
    assert "3 epochs of 4 steps of 2 images" in said
    killed.mkdir()
    done = warm_python(killed, faults.__file__, "killed", *argv)
    assert done.returncode == -9, done.stderr
    assert last(killed)["position"] | {"sums": 0, "skipped": 0} == {
        "epoch": 1, "step": 2, "sums": 0, "skipped": 0,
    }  # fmt: skip
    resume(ranks, 1, killed, "--resume", "--workers", "0", "--stop-after", "11")
    resume(ranks, 1, killed, "--resume", "--workers", "0")
    assert_same_state(last(killed), last(whole))
    for folder in (whole, killed):
        assert [row["step"] for row in rows(folder)] == ["4", "8", "12"]
    best = checkpoint.load(whole / "checkpoints" / "best.pt")["best"]["score"]
    assert best == max(float(row["dice_at_threshold"]) for row in rows(whole))


def test_a_run_stops_after_epochs_of_steps_and_keeps_their_length(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    argv = [*data_flags(images), *FLAGS, *STEPS, "--stop-after", "1epochs"]
    resume(ranks, 1, tmp_path, *argv)
    assert last(tmp_path)["position"]["epoch"] == 1
    assert [row["step"] for row in rows(tmp_path)] == ["4"]
    ((status, _, err),) = ranks.run(
        1, faults.call_train, ["--resume", "--epoch-steps", "5"], str(tmp_path)
    )
    assert status == 2 and err.startswith("error: --resume: epoch_steps 4 -> 5: a run keeps ")


def test_a_folder_of_dark_and_bright_images_is_trained_in_shares(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Every fourth image is shown as its negative."""
    images = make_set(tmp_path / "set", 80, size=(16, 16))
    for path in sorted((images / "imgs").iterdir())[::4]:
        ImageOps.invert(Image.open(path).convert("RGB")).save(path)
    bright = sum(map(is_bright, (images / "imgs").iterdir()))
    flags = ["--validation", "0", "--batch-size", "2", "--epochs", "1", "--shares", "auto"]
    out = resume(ranks, 2, tmp_path / "run", *data_flags(images), "--width", "2", *flags)
    assert f"shares of each step: 0.5 dark ({80 - bright} images), 0.5 bright ({bright} images)" in out  # fmt: skip
    assert last(tmp_path / "run")["config"]["shares"] == ["auto"]


def is_bright(path: Path) -> bool:
    """The grey image, from its darkest to its lightest pixel, is light in the mean of an 8x8 thumbnail."""
    small = np.asarray(Image.open(path).convert("L").resize((8, 8), Image.Resampling.BOX)) * 1.0
    return bool((small - small.min()).mean() > np.ptp(small) / 2)


@pytest.mark.thorough
def test_a_run_with_shares_resumes_on_another_number_of_ranks(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """On two ranks to the bit; from one to two, in float64, nothing but the order of sums is left."""
    rows = ["image,mask,group,source"]
    for k, path in enumerate(sorted((images / "imgs").iterdir())):
        (mask,) = (images / "masks").glob(f"{path.stem}*")
        rows.append(f"{path},{mask},{k},{'street' if k > 3 else 'night'}")
    listed = tmp_path / "pairs.csv"
    listed.write_text("\n".join(rows))
    shares = ["--shares", "street=2/3", "night=1/3"]
    states = []
    for name, parts in {
        "whole": [(2, 6)],
        "stopped": [(2, 4), (2, 6)],
        "moved": [(1, 4), (2, 6)],
    }.items():
        flags = ["--list", str(listed), *shares, *FLAGS, "--epoch-steps", "3"]
        for size, stop in parts:
            flags += ["--batch-size", str(4 // size), "--stop-after", str(stop)]
            out = resume(ranks, size, tmp_path / name, *flags, program=call_main_in_float64)
            assert "shares of each step: 2/3 street (" in out
            flags = ["--resume", "--workers", "0"]
        states.append(last(tmp_path / name))
    whole, stopped, moved = states
    assert_same_state(stopped, whole)
    for part in ("model", "ema"):
        torch.testing.assert_close(moved[part], whole[part], rtol=0, atol=1e-6)
    assert whole["config"]["shares"] == shares[1:]
