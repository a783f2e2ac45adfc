"""A run that is stopped and goes on ends where the undisturbed run ends, bit by bit."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main
from unet_ddp.runs import checkpoint

# 12 images, 2 of them for validation: 5 steps of 2 in each of 2 epochs.
FLAGS = ["--width", "2", "--epochs", "2", "--validation", "17", "--ema", "0.9", "--workers", "0"]
STEPS = 10


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


def train(ranks: Ranks, size: int, folder: Path, images: Path, *more: str) -> list[str]:
    """Train in `folder`; what the ranks printed."""
    batch = ["--batch-size", str(2 // size)] if size < 4 else ["--batch-size", "1"]
    argv = [*data_flags(images), *FLAGS, *batch, *more]
    outcomes = ranks.run(size, call_main, "train", argv, str(folder))
    assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    return [out for _, out, _ in outcomes]


def last(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints" / "last.pt")


def assert_same_state(one: dict[str, Any], other: dict[str, Any], *, ema: bool = True) -> None:
    """Weights, moving average, optimizer and position, equal to the last bit."""
    for part in ("model", "ema") if ema else ("model",):
        assert one[part].keys() == other[part].keys()
        for name in one[part]:
            assert torch.equal(one[part][name], other[part][name]), f"{part} {name}"
    for number, moments in one["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, other["optimizer"]["state"][number][name]), name
    assert one["position"] == other["position"]
    assert one["best"] == other["best"]
    assert one["threshold"] == other["threshold"] is not None


@pytest.fixture(scope="module")
def undisturbed(ranks: Ranks, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train(ranks, 2, folder, images)
    return folder


def test_stopped_after_any_step(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """One run, stopped after each single step and resumed with no flag but --resume."""
    train(ranks, 2, tmp_path, images, "--max-steps", "1")
    for stop in range(2, STEPS + 1):
        argv = ["--resume", "--workers", "0", "--max-steps", str(stop)]
        outcomes = ranks.run(2, call_main, "train", argv, str(tmp_path))
        assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    assert_same_state(last(tmp_path), last(undisturbed))
    rows, expected = (
        list(csv.DictReader((f / "checkpoints" / "metrics.csv").read_text().splitlines()))
        for f in (tmp_path, undisturbed)
    )
    assert [row["step"] for row in rows] == ["5", "10"]
    for row, other in zip(rows, expected, strict=True):
        for column in ("loss", "validation_dice", "learning_rate", "dice_255", "threshold",
                       "dice_at_threshold", "calibration_error"):  # fmt: skip
            assert row[column] == other[column] != ""
    best = checkpoint.load(undisturbed / "checkpoints" / "best.pt")
    assert best["threshold"] == float(expected[best["best"]["epoch"]]["threshold"])
    assert last(undisturbed)["threshold"] == float(expected[-1]["threshold"])


def test_stopped_on_four_ranks(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """DDP arranges its buckets anew after the first step; sums over four ranks must not change."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    train(ranks, 4, tmp_path / "whole", images, "--width", "6")
    train(ranks, 4, tmp_path / "stopped", images, "--width", "6", "--max-steps", "3")
    train(ranks, 4, tmp_path / "stopped", images, "--width", "6", "--resume")
    assert_same_state(last(tmp_path / "stopped"), last(tmp_path / "whole"))


def test_resumed_on_another_number_of_ranks(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """The global batch stays, so the weights agree as far as the order of sums lets them."""
    train(ranks, 2, tmp_path, images, "--max-steps", "3")
    out = train(ranks, 1, tmp_path, images, "--resume")[0]
    assert "batch size" not in out  # 2 for one rank, as the flags of `train` say
    whole, resumed = last(undisturbed), last(tmp_path)
    assert resumed["position"]["epoch"] == 2
    for name, value in whole["model"].items():
        torch.testing.assert_close(resumed["model"][name], value, rtol=0, atol=2e-3)
    status, _, err = ranks.run(1, call_main, "train", ["--resume"], str(tmp_path))[0]
    assert (status, err) == (0, "")


def test_ranks_that_cannot_share_the_batch(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    train(ranks, 2, tmp_path, images, "--max-steps", "1")
    for status, _, err in ranks.run(3, call_main, "train", ["--resume"], str(tmp_path)):
        assert status == 2
        assert "can't be divided among 3" in err or err == ""


def test_random_layers_resume_too(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """FPN drops whole channels at random: each step draws from (seed, step, rank)."""
    flags = ["--model", "fpn", "--encoder", "tu-mobilenetv3_small_050", "--epochs", "1"]
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    train(ranks, 2, tmp_path / "whole", images, *flags)
    train(ranks, 2, tmp_path / "stopped", images, *flags, "--max-steps", "2")
    train(ranks, 2, tmp_path / "stopped", images, *flags, "--resume")
    assert_same_state(last(tmp_path / "stopped"), last(tmp_path / "whole"))


def test_best_is_kept_over_a_resume(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """best.pt changes for a better score only: here the recorded best can't be beaten."""
    train(ranks, 1, tmp_path, images, "--max-steps", "5")
    path = tmp_path / "checkpoints" / "last.pt"
    content = checkpoint.load(path)
    content["best"] = {"score": 2.0, "epoch": 0}
    checkpoint.save(path, content)
    before = (path.parent / "best.pt").read_bytes()
    train(ranks, 1, tmp_path, images, "--resume")
    assert (path.parent / "best.pt").read_bytes() == before
    assert last(tmp_path)["best"]["score"] == 2.0


def test_going_back_is_asked_for(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """An older checkpoint of a run that went on is not resumed over it by accident."""
    train(ranks, 1, tmp_path, images, "--save-every", "1")
    old = str(tmp_path / "checkpoints" / "epoch_0001.pt")
    status, _, err = ranks.run(1, call_main, "train", ["--resume", old], str(tmp_path))[0]
    assert status == 2
    assert "--overwrite" in err
    whole = last(tmp_path)
    status, _, err = ranks.run(
        1, call_main, "train", ["--resume", old, "--overwrite"], str(tmp_path)
    )[0]
    assert (status, err) == (0, "")
    assert_same_state(last(tmp_path), whole)


def run(ranks: Ranks, size: int, folder: Path, *words: str) -> tuple[int, str, str]:
    """Status, output and errors of all ranks together."""
    outcomes = ranks.run(size, call_main, "train", list(words), str(folder))
    return (
        max(status for status, _, _ in outcomes),
        "".join(out for _, out, _ in outcomes),
        "".join(err for _, _, err in outcomes),
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scale", "0.5"], "scale 1.0 -> 0.5"),
        (["--width", "4"], "width 2 -> 4"),
        (["--model", "fpn"], "model unet -> fpn"),
        (["--validation", "40"], "not those that the run began with"),
    ],
)
def test_what_weights_hang_on_is_not_changed_by_a_resume(
    ranks: Ranks, images: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    train(ranks, 1, tmp_path, images, "--max-steps", "1")
    before = (tmp_path / "checkpoints" / "config.yaml").read_text()
    status, _, err = run(ranks, 1, tmp_path, "--resume", *words)
    assert status == 2 and said in err
    assert (tmp_path / "checkpoints" / "config.yaml").read_text() == before
    status, out, err = run(ranks, 1, tmp_path, "--resume", "--weight-decay", "0.5")
    assert status == 0, err
    assert "changed since: weight_decay 0.0001 -> 0.5" in out
    assert last(tmp_path)["optimizer"]["param_groups"][0]["weight_decay"] == 0.5


def test_a_checkpoint_alone_is_enough_to_go_on(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Its settings are in it: config.yaml beside it is for people."""
    train(ranks, 2, tmp_path, images, "--max-steps", "4")
    moved = tmp_path / "elsewhere" / "last.pt"
    moved.parent.mkdir()
    (tmp_path / "checkpoints" / "last.pt").rename(moved)
    status, _, err = run(ranks, 2, tmp_path, "--resume", str(moved), "--workers", "0")
    assert status == 0, err
    assert_same_state(checkpoint.load(moved), last(undisturbed))


def test_a_damaged_checkpoint_falls_back(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    train(ranks, 2, tmp_path, images, "--max-steps", "7", "--save-every-steps", "2")
    path = tmp_path / "checkpoints" / "last.pt"
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:  # a byte between two records would do no harm
        largest = max(archive.infolist(), key=lambda record: record.file_size)
    name, extra = (
        int.from_bytes(data[largest.header_offset + n :][:2], "little") for n in (26, 28)
    )
    data[largest.header_offset + 30 + name + extra + largest.file_size // 2] ^= 1
    path.write_bytes(data)
    status, out, err = run(ranks, 2, tmp_path, "--resume")
    assert status == 0, err
    assert "warning" in out and "going on from" in out and "last.1.pt" in out
    assert_same_state(last(tmp_path), last(undisturbed))


def test_overwrite_deletes_nothing_before_the_new_run_is_sound(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    train(ranks, 1, tmp_path, images)
    before = {p.name: p.read_bytes() for p in (tmp_path / "checkpoints").iterdir()}
    for mistake in (["--images", "nowhere"], ["--batch-size", "99"], ["--model", "nonsense"]):
        status, _, _ = run(ranks, 1, tmp_path, *data_flags(images), "--overwrite", *mistake)
        assert status == 2
    after = {p.name: p.read_bytes() for p in (tmp_path / "checkpoints").iterdir()}
    assert after == before
    train(ranks, 1, tmp_path, images, "--overwrite", "--epochs", "1")
    assert last(tmp_path)["position"]["epoch"] == 1


def test_two_runs_can_not_share_a_folder(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """Locks are a process's own: the second run is another process of the pool."""
    from unet_ddp.runs.folder import RunFolder

    with RunFolder(tmp_path / "checkpoints", writes=True) as folder:
        folder.hold()
        status, _, err = run(ranks, 1, tmp_path, *data_flags(images), *FLAGS)
        assert status == 2 and "another run is in it" in err
    train(ranks, 1, tmp_path, images, "--max-steps", "1")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_scores_in_the_files_do_not_depend_on_ranks(
    ranks: Ranks, images: Path, tmp_path: Path, size: int
) -> None:
    """5 validation images and a learning rate that moves nothing: every rank's share counts."""
    words = ["--batch-size", str(6 // size), "--validation", "42", "--lr", "1e-30", "--epochs", "1"]
    status, _, err = run(
        ranks, size, tmp_path, *data_flags(images), "--width", "2", "--workers", "0", *words
    )
    assert status == 0, err
    row = next(csv.DictReader((tmp_path / "checkpoints/metrics.csv").read_text().splitlines()))
    found = {name: row[name] for name in ("validation_dice", "dice_0", "iou_255")}
    _SCORES.setdefault("first", found)
    for name, value in _SCORES["first"].items():
        assert float(found[name]) == pytest.approx(float(value), abs=2e-3)


_SCORES: dict[str, dict[str, str]] = {}


def call_main_in_float64(words: list[str], folder: str) -> tuple[int, str, str]:
    """train.py with float64 for torch's default: network, images, sums and moments are of it.

    The picture at the end is left out: what predicts computes in float32.
    """
    import train

    before, show = torch.get_default_dtype(), train.show
    torch.set_default_dtype(torch.float64)
    train.show = lambda run: None
    try:
        return call_main("train", words, folder)
    finally:
        torch.set_default_dtype(before)
        train.show = show


def test_from_2_to_1_to_4_to_2_ranks_in_mid_epoch(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """In float64 nothing but the order of sums is left: 1e-6 after 8 steps, 2 in each epoch."""
    words = [*data_flags(images), *FLAGS, "--validation", "1", "--epochs", "4"]
    states = {}
    for name, stops in (("whole", [(2, 8)]), ("moved", [(2, 1), (1, 3), (4, 5), (2, 8)])):
        (tmp_path / name).mkdir()
        for size, stop in stops:
            resume = ["--resume"] if stop != stops[0][1] else []
            argv = [*words, "--batch-size", str(4 // size), "--max-steps", str(stop), *resume]
            outcomes = ranks.run(size, call_main_in_float64, argv, str(tmp_path / name))
            assert [status for status, _, _ in outcomes] == [0] * size, outcomes
            assert (last(tmp_path / name)["position"]["step"] == 0) == (stop == 8)
        states[name] = last(tmp_path / name)
    whole, moved = states["whole"], states["moved"]
    assert whole["images_per_step"] == moved["images_per_step"] == 4
    for part in ("model", "ema"):
        for name, value in whole[part].items():
            if value.is_floating_point():
                assert value.dtype == torch.float64
            torch.testing.assert_close(moved[part][name], value, rtol=0, atol=1e-6)
    for number, moments in whole["optimizer"]["state"].items():
        for name, value in moments.items():
            other = moved["optimizer"]["state"][number][name]
            torch.testing.assert_close(other, value, rtol=0, atol=1e-6)


def test_resumed_with_other_reading_processes(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """In mid-epoch from none to two, and back: samples do not depend on who reads them."""
    for name in ("whole", "moved"):
        (tmp_path / name).mkdir()
    train(ranks, 1, tmp_path / "whole", images)
    train(ranks, 1, tmp_path / "moved", images, "--max-steps", "3")
    train(ranks, 1, tmp_path / "moved", images, "--resume", "--workers", "2", "--max-steps", "7")
    train(ranks, 1, tmp_path / "moved", images, "--resume")
    assert_same_state(last(tmp_path / "moved"), last(tmp_path / "whole"))
