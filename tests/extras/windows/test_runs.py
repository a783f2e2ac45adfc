"""Runs that train on windows of scenes."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
import torch

from tests import faults
from tests.conftest import data_flags
from tests.extras.windows.scenes import write_scenes
from tests.object_store import MemoryBucket, put_folder
from tests.ranks import Ranks, call_main, call_train, warm_python
from tests.test_resume import FLAGS, assert_same_state, call_main_in_float64, last, resume, rows
from unet_ddp.extras.cloud import Url

WINDOWS = ["--window", "32", "--blocks", "2", "--validation", "20", "--batch-size", "4"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("scenes"), (192, 160), (128, 128))


@pytest.mark.thorough
def test_a_killed_run_ends_as_one_that_was_not(ranks: Ranks, scenes: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    argv = [*data_flags(scenes), *FLAGS, *WINDOWS, "--epochs", "2", "--save-every-steps", "2"]
    said = resume(ranks, 1, whole, *argv)
    assert "windows: 46 of 32x32 pixels in 2 scenes" in said
    killed.mkdir()
    done = warm_python(killed, faults.__file__, "killed", *argv)
    assert done.returncode == -9, done.stderr
    resume(ranks, 1, killed, "--resume", "--workers", "1")
    assert_same_state(last(killed), last(whole))
    assert [row["validation_dice"] for row in rows(killed)] == [
        row["validation_dice"] for row in rows(whole)
    ]
    assert not (whole / "checkpoints" / "split.csv").exists()


def test_a_run_is_the_same_on_1_2_and_4_ranks(ranks: Ranks, scenes: Path, tmp_path: Path) -> None:
    """In float64, nothing but the order of sums is left; validation counts the same pixels."""
    states, scores = [], []
    for size in (1, 2, 4):
        flags = [*FLAGS, *WINDOWS, "--epochs", "1", "--epoch-steps", "4", "--balance", "30"]
        argv = [*data_flags(scenes), *flags, "--batch-size", str(4 // size)]
        resume(ranks, size, tmp_path / str(size), *argv, program=call_main_in_float64)
        states.append(last(tmp_path / str(size)))
        scores.append([row["validation_dice"] for row in rows(tmp_path / str(size))])
    for state in states[1:]:
        torch.testing.assert_close(state["model"], states[0]["model"], rtol=0, atol=1e-7)
    assert scores[0] == scores[1] == scores[2]


def run(program: str, folder: Path, *argv: str) -> tuple[int, str, str]:
    return call_main("unet_ddp.__main__", [program, *argv], str(folder))


def test_a_run_is_evaluated_reported_and_checked_by_its_windows(
    scenes: Path, tmp_path: Path
) -> None:
    """What evaluate counts over the run's windows is what training counted."""
    argv = [*data_flags(scenes), *FLAGS, *WINDOWS, "--epochs", "1"]
    status, _, err = run("train", tmp_path, *argv)
    assert status == 0, err
    checkpoints = tmp_path / "checkpoints"
    assert (checkpoints / "report.html").exists() and (checkpoints / "samples.png").exists()
    status, out, err = run("evaluate", tmp_path, "--model", str(checkpoints / "best.pt"))
    assert status == 0, err
    scores = json.loads((checkpoints / "evaluation" / "scores.json").read_text())
    (row,) = rows(tmp_path)
    assert scores["dice_as_trained"] == pytest.approx(float(row["validation_dice"]), abs=1e-9)
    with (checkpoints / "evaluation" / "per_image.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == scores["images"] == 8
    pixels = sum(float(each["pixels_1"]) + float(each["pixels_0"]) for each in table)
    assert pixels == 8 * 32 * 32  # without what lies around them
    found = scores["classes"]
    argv = ["--model", str(checkpoints / "best.pt"), *data_flags(scenes), "--output", "given"]
    status, out, err = run("evaluate", tmp_path, *argv)  # of other scenes, too
    assert status == 0, err
    scores = json.loads((tmp_path / "given" / "scores.json").read_text())
    assert scores["images"] == 46
    assert sum(each["pixels"] for each in scores["classes"]) == 192 * 160 + 128 * 128
    assert found != scores["classes"]
    assert run("pack", tmp_path, *data_flags(scenes), "--output", "pack")[0] == 0  # of whole images
    argv = ["--model", str(checkpoints / "best.pt"), "--images", "pack", "--output", "packed"]
    status, out, err = run("evaluate", tmp_path, *argv)
    assert status == 0, err
    packed = json.loads((tmp_path / "packed" / "scores.json").read_text())
    assert packed["images"] == 2
    for one, other in zip(packed["classes"], scores["classes"], strict=True):
        assert one["pixels"] == other["pixels"]
        assert one["dice"] == pytest.approx(other["dice"], abs=1e-3)
    status, out, _ = run("doctor", tmp_path, *data_flags(scenes), *WINDOWS)
    assert status == 0 and "46 .tif" in out


@pytest.mark.parametrize(
    ("program", "flags", "said"),
    [
        ("train", "--window 100", "--window 100: is no multiple of 32; use 96"),
        ("train", "--blocks 2", "--blocks: is for --window; use both or neither"),
        ("train", "--window 32 --cache", "--window and --cache: use one of them"),
        ("train", "--window 32 --resize-masks", "--window and --resize-masks: use one of them"),
        ("train", "--window 32 --blocks 2 --group-pattern (.)", "--blocks and --group-pattern: use one"),
        ("train", "--window 32 --blocks 1 --validation 60", "--blocks 1: all windows are next to"),
        ("pack", "--window 32 --output p", "--window: "),
        ("learning-curve", "--window 32", "--window: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    scenes: Path, tmp_path: Path, program: str, flags: str, said: str
) -> None:
    status, out, err = run(program, tmp_path, *data_flags(scenes), *flags.split())
    assert status == 2 and err.startswith(f"error: {said}") and err.count("\n") == 1, (out, err)


def test_a_tile_that_can_not_be_read_in_a_run_ends_it_with_its_name(tmp_path: Path) -> None:
    """The check has read it before; the run can be resumed after the repair."""
    folder = write_scenes(tmp_path / "set", (128, 128), (128, 128))
    argv = [*data_flags(folder), *FLAGS, "--window", "32", "--batch-size", "2", "--validation", "0"]
    assert run("doctor", tmp_path, *argv[:4], "--window", "32", "--validation", "0")[0] == 0
    path = folder / "imgs" / "b.tif"
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:20_000] + bytes(len(content) - 20_000))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk fails
    code, _, err = run("train", tmp_path, *argv)
    assert code == 2 and err.count("\n") == 1, err
    assert f"error: {path} (rows " in err and "corrupt or truncated (" in err
    assert "previous exception" not in err  # but what GDAL says
    path.write_bytes(content)
    code, _, err = run("train", tmp_path, "--resume", "--workers", "0")
    assert code == 0, err


def test_a_run_reads_windows_of_objects(
    scenes: Path, tmp_path: Path, memory_store: MemoryBucket
) -> None:
    """It ends with the same weights as one of files; most of the objects is never fetched whole."""
    put_folder(scenes, Url("s3://bucket/set"))
    for name, flags in {
        "here": data_flags(scenes),
        "there": ["--images", "s3://bucket/set/imgs", "--masks", "s3://bucket/set/masks"],
    }.items():
        (tmp_path / name).mkdir()
        argv = [*flags, *FLAGS, *WINDOWS, "--epochs", "1"]
        status, _, err = call_train(argv, str(tmp_path / name))
        assert status == 0, err
    assert_same_state(last(tmp_path / "there"), last(tmp_path / "here"))
