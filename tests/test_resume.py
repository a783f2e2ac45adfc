"""A stopped run that resumes ends where the undisturbed run ends, bit by bit."""

from __future__ import annotations

import csv
import shutil
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests import jobs
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.network.architecture import in_encoder

# 12 images, 2 of them for validation: 5 steps of 2 in each of 2 epochs.
FLAGS = ["--width", "2", "--epochs", "2", "--validation", "17", "--ema", "0.9", "--workers", "0"]
STEPS = 10
SAMPLED = "--balance 0.6 --scale-jitter 0.5 2 --augmentation street --crop-size 16 24"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


def train(ranks: Ranks, size: int, folder: Path, images: Path, *more: str) -> list[str]:
    """Train in `folder`; return what the ranks printed."""
    batch = ["--batch-size", str(2 // size)] if size < 4 else ["--batch-size", "1"]
    argv = [*data_flags(images), *FLAGS, *batch, *more]
    outcomes = ranks.run(size, call_main, "train", argv, str(folder))
    assert [status for status, _, _ in outcomes] == [0] * size, outcomes
    return [out for _, out, _ in outcomes]


def last(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints" / "last.pt")


def rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "checkpoints" / "metrics.csv"
    return list(csv.DictReader(path.read_text().splitlines()))


def assert_same_state(one: dict[str, Any], other: dict[str, Any], *, ema: bool = True) -> None:
    """Weights, moving average, optimizer and position, equal to the last bit."""
    for part in ("model", "ema") if ema else ("model",):
        assert one[part].keys() == other[part].keys()
        for name in one[part]:
            assert torch.equal(one[part][name], other[part][name]), f"{part} {name}"
    for index, moments in one["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, other["optimizer"]["state"][index][name]), name
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
    found, expected = rows(tmp_path), rows(undisturbed)
    assert [row["step"] for row in found] == ["5", "10"]
    for row, other in zip(found, expected, strict=True):
        for column in ("loss", "validation_dice", "learning_rate", "dice_255", "threshold",
                       "dice_at_threshold", "calibration_error"):  # fmt: skip
            assert row[column] == other[column] != ""
    best = checkpoint.load(undisturbed / "checkpoints" / "best.pt")
    assert best["threshold"] == float(expected[best["best"]["epoch"]]["threshold"])
    assert last(undisturbed)["threshold"] == float(expected[-1]["threshold"])


def test_what_makes_runs_depend_on_ranks_still_resumes(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """In mid-epoch: the running averages, too, are then those of all ranks."""
    flags = "--batch-norm", "local", "--compress-gradients"
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = train(ranks, 2, tmp_path / "whole", images, *flags)
    assert "own batch" in whole[0]
    train(ranks, 2, tmp_path / "stopped", images, *flags, "--max-steps", "3")
    train(ranks, 2, tmp_path / "stopped", images, "--resume")
    one, other = (last(tmp_path / name) for name in ("whole", "stopped"))
    assert_same_state(one, other)
    name = "down4.maxpool_conv.1.double_conv.1.running_var"
    assert not torch.allclose(one["model"][name], last(undisturbed)["model"][name])


@pytest.mark.thorough
def test_in_the_cpus_own_bfloat16_too(images: Path, tmp_path: Path) -> None:
    """In processes with all instructions of this CPU, which the other tests do without."""
    flags = [] if torch.cpu._is_avx512_bf16_supported() else ["--amp-dtype", "bfloat16"]
    counts, pool = [], Ranks(2)
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    try:
        pool.run(2, jobs.use_all_instructions)
        train(pool, 2, tmp_path / "whole", images, *flags)
        train(pool, 2, tmp_path / "stopped", images, *flags, "--max-steps", "3")
        train(pool, 2, tmp_path / "stopped", images, "--resume")
        for size in (1, 2):
            counts += pool.run(size, jobs.count_shards, [5], "bfloat16")
        (in_float32,) = pool.run(1, jobs.count_shards, [5])
    finally:
        pool.close()
    assert last(tmp_path / "whole")["config"]["amp_dtype"] == "bfloat16"
    assert_same_state(last(tmp_path / "stopped"), last(tmp_path / "whole"))
    (alone,), *shared = counts
    for ((confusion, histogram),) in shared:
        assert (confusion == alone[0]).all() and (histogram == alone[1]).all()
    assert (alone[1] != in_float32[0][1]).any()


@pytest.mark.thorough
def test_stopped_on_four_ranks(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """DDP rearranges its buckets after the first step; sums over four ranks must not change."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    train(ranks, 4, tmp_path / "whole", images, "--width", "6")
    train(ranks, 4, tmp_path / "stopped", images, "--width", "6", "--max-steps", "3")
    train(ranks, 4, tmp_path / "stopped", images, "--width", "6", "--resume")
    assert_same_state(last(tmp_path / "stopped"), last(tmp_path / "whole"))


@pytest.mark.parametrize(
    "flags",
    [
        f"--loss lovasz_ce --hard-pixels 40 --boundary-weight 5 --label-smoothing 0.1 {SAMPLED}",
        *(
            pytest.param(f"--loss {name}", marks=pytest.mark.thorough)
            for name in ("dice_focal", "tversky", "focal --hard-pixels 20", "lovasz")
        ),
    ],
)
def test_other_losses_and_samples_resume_too(
    ranks: Ranks, images: Path, tmp_path: Path, flags: str
) -> None:
    argv = [*flags.split(), "--epochs", "1"]
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    train(ranks, 2, tmp_path / "whole", images, *argv)
    train(ranks, 2, tmp_path / "stopped", images, *argv, "--max-steps", "3")
    status, _, err = run(ranks, 2, tmp_path / "stopped", "--resume", "--workers", "0")
    assert status == 0, err
    assert_same_state(last(tmp_path / "stopped"), last(tmp_path / "whole"))


def test_a_run_without_patience_left_anneals_and_ends(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """Weights that hardly move bring no better score; the end is the same with stops in it."""
    argv = ["--epochs", "50", "--patience", "2", "--lr", "1e-9", "--validation", "75"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    stopped.mkdir()
    (out,) = train(ranks, 1, whole, images, *argv)
    assert "--patience 2: best validation Dice" in out
    content = last(whole)
    first, end = content["anneal"]  # one step in each epoch
    assert end - first == -(-first // 10) and content["position"]["epoch"] == end < 50
    train(ranks, 1, stopped, images, *argv, "--max-steps", str(first))
    status, out, err = run(ranks, 1, stopped, "--resume", "--workers", "0")
    assert status == 0, err
    assert f"the run's patience was over, so it ends after {end} epochs; --patience 0" in out
    assert_same_state(last(stopped), content)
    rates = [row["learning_rate"] for row in rows(whole)]
    assert rates == [row["learning_rate"] for row in rows(stopped)]


@pytest.mark.thorough
def test_a_planned_run_has_the_bits_of_its_plan(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """The steps that were timed leave no trace; a resumed run keeps the plan."""
    planned, plain = tmp_path / "planned", tmp_path / "plain"
    planned.mkdir()
    plain.mkdir()
    flags = ["--width", "2", "--validation", "17", "--ema", "0.9", "--workers", "0"]
    flags += ["--batch-size", "1", "--budget", "1h"]
    for more in ([], ["--resume"]):
        argv = [*data_flags(images), *flags, *more, "--max-steps", "7" if more else "3"]
        status, out, err = run(ranks, 2, planned, *argv)
        assert status == 0, err
        assert ("--budget 1h: " in out) == (not more)
    epochs = last(planned)["config"]["epochs"]
    assert epochs > 100
    train(ranks, 2, plain, images, "--epochs", str(epochs), "--max-steps", "7")
    assert_same_state(last(planned), last(plain))


@pytest.mark.parametrize(
    ("size", "flags"),
    [
        (2, "--accumulate 2 --epochs 2"),
        pytest.param(1, "--encoder-rate 0.1 --epochs 2", marks=pytest.mark.thorough),
        pytest.param(4, "--epochs 2", marks=pytest.mark.thorough),
        pytest.param(2, "--batch-size auto --epochs 2", marks=pytest.mark.thorough),
        pytest.param(1, "--freeze encoder --epochs 2", marks=pytest.mark.thorough),
        pytest.param(1, "--budget 1h", marks=pytest.mark.thorough),
    ],
)
def test_a_found_learning_rate_leaves_no_trace_and_stays(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path, size: int, flags: str
) -> None:
    """The run is that with the number, bit by bit; when resumed it is not searched again."""
    found, plain = tmp_path / "found", tmp_path / "plain"
    found.mkdir()
    plain.mkdir()
    load = ["--load", str(alone / "checkpoints" / "best.pt")] if "freeze" in flags else []
    argv = [*data_flags(images), *FLAGS[:2], *FLAGS[4:], "--batch-size", str(max(1, 2 // size))]
    argv += flags.split()
    auto = ["--learning-rate", "auto", "--max-steps"]
    status, out, err = run(ranks, size, found, *argv, *load, *auto, "2")
    assert status == 0, err
    rate, epochs = (last(found)["config"][name] for name in ("learning_rate", "epochs"))
    assert out.count(f"--learning-rate auto: {rate:g}, at which the loss") == 1
    curve = (found / "checkpoints" / "learning_rate.csv").read_text()
    assert curve.count("\n") == 1 + 60
    status, out, err = run(ranks, size, found, *argv, *auto, "5", "--resume")
    assert status == 0 and "--learning-rate" not in out, err + out
    assert (found / "checkpoints" / "learning_rate.csv").read_text() == curve
    argv = [*argv, "--lr", repr(rate), "--max-steps", "5"]
    argv = [word for word in argv if word not in ("--budget", "1h")]
    status, _, err = run(ranks, size, plain, *argv, *load, "--epochs", str(epochs))
    assert status == 0, err
    assert_same_state(last(found), last(plain))


@pytest.mark.thorough
def test_random_layers_resume_too(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """FPN drops whole channels at random: each step draws from (seed, step, rank)."""
    flags = ["--model", "fpn", "--encoder", "tu-mobilenetv3_small_050", "--epochs", "1"]
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    train(ranks, 2, tmp_path / "whole", images, *flags)
    train(ranks, 2, tmp_path / "stopped", images, *flags, "--max-steps", "2")
    train(ranks, 2, tmp_path / "stopped", images, *flags, "--resume")
    assert_same_state(last(tmp_path / "stopped"), last(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("size", "flags"),
    [
        (2, ["--load", "--freeze", "encoder"]),
        (1, ["--encoder-weights", "--encoder-rate", "0.1"]),
        pytest.param(4, ["--load", "--freeze", "encoder"], marks=pytest.mark.thorough),
        pytest.param(2, ["--encoder-weights", "--encoder-rate", "0.1"], marks=pytest.mark.thorough),
    ],
)
def test_fine_tuning_resumes_too(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path, size: int, flags: list[str]
) -> None:
    """From other bands; the resumed run needs the file no more."""
    source = str(shutil.copy(alone / "checkpoints" / "best.pt", tmp_path / "old.pt"))
    flags = [flags[0], source, *flags[1:], "--channels", "1"]
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    said = train(ranks, size, tmp_path / "whole", images, *flags)[0]
    assert f"tensors of {source}\nadapted: inc.double_conv.0.weight, from 3 to 1" in said
    train(ranks, size, tmp_path / "stopped", images, *flags, "--max-steps", "3")
    (tmp_path / "old.pt").unlink()
    train(ranks, size, tmp_path / "stopped", images, "--resume")
    whole, stopped = last(tmp_path / "whole"), last(tmp_path / "stopped")
    assert_same_state(stopped, whole)
    old = checkpoint.load(alone / "checkpoints" / "best.pt")["model"]
    kept = [
        name for name in old if in_encoder(name) and torch.equal(old[name], whole["model"][name])
    ]
    count = sum(in_encoder(name) for name in old)
    assert len(kept) == (count - 1 if "--freeze" in flags else 0)  # all but the adapted one


@pytest.mark.thorough
def test_an_encoder_is_thawed_by_a_resume(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    """First the head alone, then all of it: the encoder's moments begin there."""
    source = str(alone / "checkpoints" / "best.pt")
    train(ranks, 2, tmp_path, images, "--load", source, "--freeze", "encoder", "--max-steps", "5")
    first = last(tmp_path)
    said = train(
        ranks, 2, tmp_path, images, "--resume", "--freeze", "none", "--encoder-rate", "0.1"
    )
    assert "changed since: encoder_rate 1.0 -> 0.1, freeze encoder -> none" in said[0]
    second, name = last(tmp_path), "inc.double_conv.0.weight"
    assert torch.equal(first["model"][name], checkpoint.load(Path(source))["model"][name])
    assert not torch.equal(first["model"][name], second["model"][name])
    assert 0 not in first["optimizer"]["state"]
    assert second["optimizer"]["state"][0]["step"].item() == 5


def test_best_is_kept_over_a_resume(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """best.pt changes for a better score only: here the recorded best can't be beaten."""
    train(ranks, 1, tmp_path, images, "--max-steps", "5")
    path = tmp_path / "checkpoints" / "last.pt"
    for name in ("last.pt", "best.pt"):
        content = checkpoint.load(path.with_name(name))
        checkpoint.save(path.with_name(name), {**content, "best": {"score": 1.0, "epoch": 0}})
    before = (path.parent / "best.pt").read_bytes()
    train(ranks, 1, tmp_path, images, "--resume")
    assert (path.parent / "best.pt").read_bytes() == before
    assert last(tmp_path)["best"]["score"] == 1.0


@pytest.fixture(scope="module")
def alone(ranks: Ranks, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run on one rank; to be copied."""
    folder = tmp_path_factory.mktemp("alone")
    train(ranks, 1, folder, images, "--save-every", "1")
    return folder


def test_to_go_back_takes_a_flag(ranks: Ranks, alone: Path, tmp_path: Path) -> None:
    """An older checkpoint of a run that continued is not resumed over it by accident."""
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    old = str(tmp_path / "checkpoints" / "epoch_0001.pt")
    status, _, err = run(ranks, 1, tmp_path, "--resume", old)
    assert status == 2
    assert "--overwrite" in err
    status, _, err = run(ranks, 1, tmp_path, "--resume", old, "--overwrite")
    assert (status, err) == (0, "")
    assert_same_state(last(tmp_path), last(alone))


def run(ranks: Ranks, size: int, folder: Path, *argv: str) -> tuple[int, str, str]:
    """Run train.py in `folder`; return status, output and errors of all ranks together."""
    outcomes = ranks.run(size, call_main, "train", list(argv), str(folder))
    return (
        max(status for status, _, _ in outcomes),
        "".join(out for _, out, _ in outcomes),
        "".join(err for _, _, err in outcomes),
    )


@pytest.fixture(scope="module")
def begun(ranks: Ranks, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one rank that has done one step; to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    train(ranks, 1, folder, images, "--max-steps", "1")
    return folder


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--scale", "0.5"], "scale 1.0 -> 0.5"),
        (["--width", "4"], "width 2 -> 4"),
        (["--model", "fpn"], "model unet -> fpn"),
        (["--validation", "40"], "differ from those that the run started with"),
        (["--images-per-step", "5"], "takes 2 in each step"),
    ],
)
def test_settings_on_which_weights_depend_are_kept(
    ranks: Ranks, begun: Path, tmp_path: Path, flags: list[str], said: str
) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    status, _, err = run(ranks, 1, tmp_path, "--resume", *flags)
    assert status == 2 and said in err, err
    config = (tmp_path / "checkpoints" / "config.yaml").read_bytes()
    assert config == (begun / "checkpoints" / "config.yaml").read_bytes()


def test_other_settings_may_change(ranks: Ranks, begun: Path, tmp_path: Path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    flags = ["--weight-decay", "0.5", "--max-steps", "2"]
    status, out, err = run(ranks, 1, tmp_path, "--resume", *flags)
    assert status == 0, err
    assert "changed since: weight_decay 0.0001 -> 0.5" in out
    assert last(tmp_path)["optimizer"]["param_groups"][0]["weight_decay"] == 0.5


def test_ranks_that_cannot_share_the_batch(ranks: Ranks, begun: Path, tmp_path: Path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    status, _, err = run(ranks, 3, tmp_path, "--resume")
    assert status == 2
    assert err.count("error: ") == 1 and "can't be divided among 3" in err


def test_a_checkpoint_alone_is_enough_to_go_on(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """It contains its settings: config.yaml next to it is for people."""
    train(ranks, 2, tmp_path, images, "--max-steps", "4")
    moved = tmp_path / "elsewhere" / "last.pt"
    moved.parent.mkdir()
    (tmp_path / "checkpoints" / "last.pt").rename(moved)
    status, _, err = run(ranks, 2, tmp_path, "--resume", str(moved), "--workers", "0")
    assert status == 0, err
    assert_same_state(checkpoint.load(moved), last(undisturbed))
    status, _, err = run(ranks, 2, tmp_path, "--resume", str(moved))  # the run is over
    assert (status, err) == (0, "")


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
    assert "warning" in out and "resuming" in out and "last.1.pt" in out
    assert_same_state(last(tmp_path), last(undisturbed))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"damaged")])
def test_a_finished_run_whose_best_is_lost_says_so_once(
    ranks: Ranks, alone: Path, tmp_path: Path, damage: Any
) -> None:
    """Issue: "the best of the epochs from here on is saved there", of which there are none."""
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "checkpoints"
    content = last(tmp_path)
    best = {"score": 0.9, "epoch": 0}  # not of the last epoch, whose network last.pt has
    checkpoint.save(folder / "last.pt", {**content, "best": best})
    for path in folder.glob("epoch_*.pt"):
        path.unlink()
    damage(folder / "best.pt")
    before = {p.name: p.read_bytes() for p in folder.glob("*.[hp]*")}
    status, out, err = run(ranks, 1, tmp_path, "--resume")
    assert status == 0, err
    said = [line for line in out.splitlines() if "best" in line]
    assert said == [
        "checkpoints/best.pt is not the network of epoch 1, the best so far, and the run is over: predict "
        "with --model checkpoints/last.pt, or train on with --resume and more --epochs"
    ]
    assert {p.name: p.read_bytes() for p in folder.glob("*.[hp]*")} == before
    status, out, err = run(ranks, 1, tmp_path, "--resume", "--epochs", "3")
    assert status == 0, err
    assert "the best of the epochs from here on is saved there" in out
    assert checkpoint.load(folder / "best.pt")["best"]["epoch"] == 2


def test_overwrite_deletes_nothing_before_the_new_run_can_start(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    before = {p.name: p.read_bytes() for p in (tmp_path / "checkpoints").iterdir()}
    for mistake in (["--images", "nowhere"], ["--batch-size", "99"], ["--model", "nonsense"]):
        status, _, _ = run(ranks, 1, tmp_path, *data_flags(images), "--overwrite", *mistake)
        assert status == 2
    after = {p.name: p.read_bytes() for p in (tmp_path / "checkpoints").iterdir()}
    del before[".lock"], after[".lock"]  # has the number of a process
    assert after == before
    train(ranks, 1, tmp_path, images, "--overwrite", "--epochs", "1")
    assert last(tmp_path)["position"]["epoch"] == 1
    assert not (tmp_path / "checkpoints" / "epoch_0001.pt").exists()


@pytest.mark.thorough
def test_scores_in_the_files_do_not_depend_on_ranks(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """5 validation images and a learning rate that moves nothing: every rank's share counts."""
    argv = [*data_flags(images), "--width", "2", "--workers", "0", "--epochs", "1"]
    argv += ["--validation", "42", "--lr", "1e-30"]
    found = []
    for size in (1, 2, 3):
        folder = tmp_path / str(size)
        folder.mkdir()
        status, _, err = run(ranks, size, folder, *argv, "--batch-size", str(6 // size))
        assert status == 0, err
        row = next(csv.DictReader((folder / "checkpoints/metrics.csv").read_text().splitlines()))
        found.append([float(row[name]) for name in ("validation_dice", "dice_0", "iou_255")])
    assert found[1] == pytest.approx(found[0], abs=2e-3)
    assert found[2] == pytest.approx(found[0], abs=2e-3)


def call_main_in_float64(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py with float64 for torch's default: network, images, sums and moments are of it.

    The reports at the end are left out: what predicts computes in float32.
    """

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch("unet_ddp.extras.report.write.write_reports"):
            return call_main("train", argv, folder)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("stops", "flags"),
    [
        ([(2, 3), (1, 8)], ""),
        pytest.param([(2, 1), (1, 3), (4, 5), (2, 8)], "", marks=pytest.mark.thorough),
        pytest.param([(1, 3), (4, 5), (1, 8)], SAMPLED, marks=pytest.mark.thorough),
    ],
    ids=lambda value: value or "plain" if isinstance(value, str) else
    " to ".join(str(size) for size, _ in value),
)  # fmt: skip
def test_resumed_in_mid_epoch_on_another_number_of_ranks(
    ranks: Ranks, images: Path, tmp_path: Path, stops: list[tuple[int, int]], flags: str
) -> None:
    """In float64 nothing but the order of sums is left: 1e-6 after 8 steps, 2 in each epoch."""
    argv = [*data_flags(images), *FLAGS, "--validation", "1", "--epochs", "4", *flags.split()]
    states = {}
    for name, path in (("whole", [(2, 8)]), ("moved", stops)):
        (tmp_path / name).mkdir()
        for size, stop in path:
            more = ["--batch-size", str(4 // size), "--max-steps", str(stop)]
            more += [] if stop == path[0][1] else ["--resume"]
            outcomes = ranks.run(size, call_main_in_float64, argv + more, str(tmp_path / name))
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
    for index, moments in whole["optimizer"]["state"].items():
        for name, value in moments.items():
            other = moved["optimizer"]["state"][index][name]
            torch.testing.assert_close(other, value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "sizes", [(1, 2), pytest.param((1, 2, 4), marks=pytest.mark.thorough)], ids=str
)
def test_a_learning_rate_is_found_alike_on_any_number_of_ranks(
    ranks: Ranks, images: Path, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    """It is a matter of the global batch: the same number, and in float64 the same weights to 1e-6."""
    argv = [*data_flags(images), *FLAGS, "--lr", "auto", "--max-steps", "3"]
    curves, states = [], []
    for size in sizes:
        folder = tmp_path / str(size)
        folder.mkdir()
        flags = ["--batch-size", str(4 // size)]
        outcomes = ranks.run(size, call_main_in_float64, argv + flags, str(folder))
        assert [status for status, _, _ in outcomes] == [0] * size, outcomes
        assert sum("--learning-rate auto: " in out for _, out, _ in outcomes) == 1
        path = folder / "checkpoints" / "learning_rate.csv"
        curves.append([float(row["loss"]) for row in csv.DictReader(path.read_text().splitlines())])
        states.append(last(folder))
    for curve, state in zip(curves, states, strict=True):
        assert state["config"]["learning_rate"] == states[0]["config"]["learning_rate"]
        assert len(curve) == 60
        assert curve[:40] == pytest.approx(curves[0][:40], abs=1e-6)
        for name, value in states[0]["model"].items():
            torch.testing.assert_close(state["model"][name], value, rtol=0, atol=1e-6)


def test_resumed_with_other_reading_processes(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    """In mid-epoch from none to two, and back: samples do not depend on who reads them."""
    train(ranks, 1, tmp_path, images, "--max-steps", "3")
    train(ranks, 1, tmp_path, images, "--resume", "--workers", "2", "--max-steps", "7")
    train(ranks, 1, tmp_path, images, "--resume")
    assert_same_state(last(tmp_path), last(alone))
