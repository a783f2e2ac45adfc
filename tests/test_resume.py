"""A stopped run that resumes ends where the undisturbed run ends, bit by bit."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import jobs
from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_train
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.network.architecture import in_encoder

# 12 images, 2 of them for validation: 5 steps of 2 in each of 2 epochs.
FLAGS = ["--width", "2", "--epochs", "2", "--validation", "17", "--ema", "0.9", "--workers", "0"]
SAMPLED = "--balance 60 --scale-jitter 0.5 2 --augmentation street --crop-size 16 24"
thorough, release = pytest.mark.thorough, pytest.mark.release


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), 12, size=(32, 32))


def run(
    ranks: Ranks, size: int, folder: Path, *argv: str, program: Any = call_train
) -> tuple[int, str, str]:
    """Run train.py in `folder`; return status, output and errors of all ranks together."""
    folder.mkdir(exist_ok=True)
    outcomes = ranks.run(size, program, list(argv), str(folder))
    statuses, outs, errs = zip(*outcomes, strict=True)
    return max(statuses), "".join(outs), "".join(errs)


def train(
    ranks: Ranks, size: int, folder: Path, images: Path, *more: str, program: Any = call_train
) -> str:
    """Train with the settings of this file, two images in a step (four on four ranks)."""
    argv = [*data_flags(images), *FLAGS, "--batch-size", str(max(1, 2 // size)), *more]
    return resume(ranks, size, folder, *argv, program=program)


def resume(ranks: Ranks, size: int, folder: Path, *argv: str, program: Any = call_train) -> str:
    """Run train.py, which must succeed; return what the ranks printed."""
    status, out, err = run(ranks, size, folder, *argv, program=program)
    assert status == 0, err
    return out


def last(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints" / "last.pt")


def rows(folder: Path, name: str = "metrics.csv") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "checkpoints" / name).read_text().splitlines()))


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


@pytest.fixture(scope="module")
def alone(ranks: Ranks, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run on one rank; to be copied."""
    folder = tmp_path_factory.mktemp("alone")
    train(ranks, 1, folder, images, "--save-every", "1")
    return folder


@pytest.mark.parametrize(
    "stops", [(1, 3, 5, 6, 9), pytest.param(range(1, 10), marks=[thorough, release])]
)
def test_stopped_after_any_step(
    ranks: Ranks, images: Path, undisturbed: Path, tmp_path: Path, stops: Any
) -> None:
    """One run, stopped after each of these steps and resumed with no flag but --resume."""
    train(ranks, 2, tmp_path, images, "--stop-after", str(stops[0]))
    for stop in (*stops[1:], 10):
        resume(ranks, 2, tmp_path, "--resume", "--workers", "0", "--stop-after", str(stop))
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


WEIGHTED = "--hard-pixels 40 --boundary-weight 5 --label-smoothing 10"
SMALL = "tu-mobilenetv3_small_050"
LOSSES = ("dice_focal", "tversky", "focal --hard-pixels 20", "lovasz")


@pytest.mark.parametrize(
    ("size", "flags"),
    [
        # What makes runs depend on ranks: the running averages, too, are then those of all ranks.
        (2, "--batch-norm local --compress-gradients"),
        pytest.param(2, f"--epochs 1 --loss lovasz_ce {WEIGHTED} {SAMPLED}", marks=thorough),
        *(
            pytest.param(2, f"--epochs 1 --loss {name}", marks=[thorough, release])
            for name in LOSSES
        ),
        # DDP rearranges its buckets after the first step; sums over four ranks must not change.
        pytest.param(4, "--width 6", marks=[thorough, release]),
        # FPN drops whole channels at random: each step draws from (seed, step, rank).
        pytest.param(2, f"--epochs 1 --model fpn --encoder {SMALL}", marks=[thorough, release]),
    ],
)
def test_with_other_settings_too(
    ranks: Ranks, images: Path, tmp_path: Path, size: int, flags: str
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    said = train(ranks, size, whole, images, *flags.split())
    assert ("own batch" in said) == ("local" in flags)
    train(ranks, size, stopped, images, *flags.split(), "--stop-after", "2")
    resume(ranks, size, stopped, "--resume", "--workers", "0")
    assert_same_state(last(stopped), last(whole))


@thorough
def test_in_the_cpus_own_bfloat16_too(images: Path, tmp_path: Path) -> None:
    """In processes with all instructions of this CPU, which the other tests do without."""
    flags = ["--precision", "bfloat16"]
    whole, stopped, pool = tmp_path / "whole", tmp_path / "stopped", Ranks(2)
    try:
        pool.run(2, jobs.use_all_instructions)
        train(pool, 2, whole, images, *flags)
        train(pool, 2, stopped, images, *flags, "--stop-after", "3")
        resume(pool, 2, stopped, "--resume")
        (((confusion, histogram),),) = pool.run(1, jobs.count_shards, [5], "bfloat16")
        shared = pool.run(2, jobs.count_shards, [5], "bfloat16")
        (((_, in_float32),),) = pool.run(1, jobs.count_shards, [5])
    finally:
        pool.close()
    assert_same_state(last(stopped), last(whole))
    for ((found, counts),) in shared:
        assert (found == confusion).all() and (counts == histogram).all()
    assert (histogram != in_float32).any()


def test_a_run_without_patience_left_anneals_and_ends(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """Weights that hardly move bring no better score; the end is the same with stops in it."""
    argv = ["--epochs", "50", "--patience", "2", "--lr", "1e-9", "--validation", "75"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert "--patience 2: best validation Dice" in train(ranks, 1, whole, images, *argv)
    content = last(whole)
    first, end = content["anneal"]  # one step in each epoch
    assert end - first == -(-first // 10) and content["position"]["epoch"] == end < 50
    train(ranks, 1, stopped, images, *argv, "--stop-after", str(first))
    out = resume(ranks, 1, stopped, "--resume", "--workers", "0")
    assert f"the run's patience was over, so it ends after {end} epochs; --patience 0" in out
    assert_same_state(last(stopped), content)
    rates = [[row["learning_rate"] for row in rows(folder)] for folder in (whole, stopped)]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("size", "flags"),
    [
        pytest.param(1, "--encoder-rate 0.1 --epochs 2", marks=thorough),
        pytest.param(2, "--accumulate 2 --epochs 2", marks=[thorough, release]),
        pytest.param(4, "--epochs 2", marks=[thorough, release]),
        pytest.param(2, "--batch-size auto --epochs 2", marks=[thorough, release]),
        pytest.param(1, "--freeze encoder --epochs 2", marks=[thorough, release]),
        pytest.param(2, "--budget 1h", marks=[thorough, release]),
    ],
)
def test_what_was_planned_leaves_no_trace_and_stays(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path, size: int, flags: str
) -> None:
    """The run is that with the numbers found, bit by bit; when resumed it is not planned again."""
    found, plain = tmp_path / "found", tmp_path / "plain"
    load = ["--load", str(alone / "checkpoints" / "best.pt")] if "freeze" in flags else []
    argv = [*data_flags(images), *FLAGS[:2], *FLAGS[4:], "--batch-size", str(max(1, 2 // size))]
    auto = [*argv, *flags.split(), "--learning-rate", "auto", "--stop-after"]
    out = resume(ranks, size, found, *auto, "2", *load)
    config = last(found)["config"]
    rate, epochs = config["learning_rate"], config["epochs"]
    assert out.count(f"--learning-rate auto: {rate:g}, at which the loss") == 1
    assert ("--budget 1h: " in out and epochs > 100) == ("budget" in flags)
    curve = rows(found, "learning_rate.csv")
    assert len(curve) == 60
    out = resume(ranks, size, found, *auto, "5", "--resume")
    assert "--learning-rate" not in out and "--budget" not in out
    assert rows(found, "learning_rate.csv") == curve
    argv += [*flags.replace("--budget 1h", "").split(), "--lr", repr(rate), "--stop-after", "5"]
    resume(ranks, size, plain, *argv, *load, "--epochs", str(epochs))
    assert_same_state(last(found), last(plain))


@pytest.mark.parametrize(
    ("size", "flags"),
    [
        (2, ["--load", "--freeze", "encoder"]),
        pytest.param(1, ["--encoder-weights", "--encoder-rate", "0.1"], marks=thorough),
        pytest.param(4, ["--load", "--freeze", "encoder"], marks=[thorough, release]),
        pytest.param(2, ["--encoder-weights", "--encoder-rate", "0.1"], marks=[thorough, release]),
    ],
)
def test_fine_tuning_resumes_too(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path, size: int, flags: list[str]
) -> None:
    """From other bands; the resumed run needs the file no more."""
    source = str(shutil.copy(alone / "checkpoints" / "best.pt", tmp_path / "old.pt"))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    flags = [flags[0], source, *flags[1:], "--channels", "1"]
    said = train(ranks, size, whole, images, *flags)
    assert f"tensors of {source}\nadapted: inc.double_conv.0.weight, from 3 to 1" in said
    train(ranks, size, stopped, images, *flags, "--stop-after", "3")
    (tmp_path / "old.pt").unlink()
    resume(ranks, size, stopped, "--resume")
    assert_same_state(last(stopped), last(whole))
    old, new = checkpoint.load(alone / "checkpoints" / "best.pt")["model"], last(whole)["model"]
    encoder = [name for name in old if in_encoder(name)]
    kept = sum(torch.equal(old[name], new[name]) for name in encoder)
    assert kept == (len(encoder) - 1 if "--freeze" in flags else 0)  # all but the adapted one


@thorough
def test_an_encoder_is_thawed_by_a_resume(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    """First the head alone, then all of it: the encoder's moments begin there."""
    source, name = alone / "checkpoints" / "best.pt", "inc.double_conv.0.weight"
    frozen = ["--load", str(source), "--freeze", "encoder"]
    train(ranks, 2, tmp_path, images, *frozen, "--stop-after", "5")
    first = last(tmp_path)
    out = resume(ranks, 2, tmp_path, "--resume", "--freeze", "none", "--encoder-rate", "0.1")
    assert "changed since: encoder_rate 1.0 -> 0.1, freeze encoder -> none" in out
    second = last(tmp_path)
    assert torch.equal(first["model"][name], checkpoint.load(source)["model"][name])
    assert not torch.equal(first["model"][name], second["model"][name])
    assert 0 not in first["optimizer"]["state"]
    assert second["optimizer"]["state"][0]["step"].item() == 5


def test_best_is_kept_over_a_resume(ranks: Ranks, images: Path, tmp_path: Path) -> None:
    """best.pt changes for a better score only: here the recorded best can't be beaten."""
    train(ranks, 1, tmp_path, images, "--stop-after", "5")
    folder = tmp_path / "checkpoints"
    for name in ("last.pt", "best.pt"):
        content = checkpoint.load(folder / name)
        best = {**content["best"], "score": 1.0, "epoch": 0}
        checkpoint.save(folder / name, {**content, "best": best})
    before = (folder / "best.pt").read_bytes()
    resume(ranks, 1, tmp_path, "--resume")
    assert (folder / "best.pt").read_bytes() == before
    assert last(tmp_path)["best"]["score"] == 1.0


def test_to_go_back_takes_a_flag(ranks: Ranks, alone: Path, tmp_path: Path) -> None:
    """An older checkpoint of a run that continued is not resumed over it by accident."""
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    old = ["--resume", str(tmp_path / "checkpoints" / "epoch_0001.pt")]
    status, _, err = run(ranks, 1, tmp_path, *old)
    assert status == 2 and "--overwrite" in err
    resume(ranks, 1, tmp_path, *old, "--overwrite")
    assert_same_state(last(tmp_path), last(alone))


def test_settings_on_which_weights_depend_are_kept_and_others_may_change(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    train(ranks, 1, tmp_path, images, "--stop-after", "1")
    config = tmp_path / "checkpoints" / "config.yaml"
    before = config.read_bytes()
    for size, flags, said in (
        (1, ["--scale", "0.5"], "scale 1.0 -> 0.5"),
        (1, ["--validation", "40"], "differ from those that the run started with"),
        (3, [], "can't be divided among 3"),
    ):
        status, _, err = run(ranks, size, tmp_path, "--resume", *flags)
        assert status == 2 and err.count("error: ") == 1 and said in err, err
        assert config.read_bytes() == before
    out = resume(ranks, 1, tmp_path, "--resume", "--weight-decay", "0.5", "--stop-after", "2")
    assert "changed since: weight_decay 0.0001 -> 0.5" in out
    assert last(tmp_path)["optimizer"]["param_groups"][0]["weight_decay"] == 0.5


def test_a_checkpoint_alone_is_enough_to_go_on(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    """It contains its settings: config.yaml next to it is for people."""
    train(ranks, 1, tmp_path, images, "--stop-after", "4")
    moved = tmp_path / "elsewhere" / "last.pt"
    moved.parent.mkdir()
    (tmp_path / "checkpoints" / "last.pt").rename(moved)
    for _ in range(2):  # the second time the run is over
        resume(ranks, 1, tmp_path, "--resume", str(moved), "--workers", "0")
        assert_same_state(checkpoint.load(moved), last(alone))


def test_a_damaged_checkpoint_falls_back(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    train(ranks, 1, tmp_path, images, "--stop-after", "7", "--save-every-steps", "2")
    path = tmp_path / "checkpoints" / "last.pt"
    path.write_bytes(path.read_bytes()[:-100])
    out = resume(ranks, 1, tmp_path, "--resume")
    assert "warning" in out and "resuming" in out and "last.1.pt" in out
    assert_same_state(last(tmp_path), last(alone))


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, pytest.param(lambda path: path.write_bytes(b"damaged"), marks=thorough)],
)
def test_a_finished_run_whose_best_is_lost_says_so_once(
    ranks: Ranks, alone: Path, tmp_path: Path, damage: Any
) -> None:
    """Issue: "the best of the epochs from here on is saved there", of which there are none."""
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "checkpoints"
    # Not of the last epoch, whose network last.pt has.
    best = {**last(tmp_path)["best"], "score": 0.9, "epoch": 0}
    checkpoint.save(folder / "last.pt", {**last(tmp_path), "best": best})
    for path in folder.glob("epoch_*.pt"):
        path.unlink()
    damage(folder / "best.pt")
    before = {p.name: p.read_bytes() for p in folder.glob("*.[hp]*")}
    out = resume(ranks, 1, tmp_path, "--resume")
    assert [line for line in out.splitlines() if "best" in line] == [
        "checkpoints/best.pt is not the network of epoch 1, the best so far, and the run is over: predict "
        "with --model checkpoints/last.pt, or train on with --resume and more --epochs"
    ]
    assert {p.name: p.read_bytes() for p in folder.glob("*.[hp]*")} == before
    out = resume(ranks, 1, tmp_path, "--resume", "--epochs", "3")
    assert "the best of the epochs from here on is saved there" in out
    assert checkpoint.load(folder / "best.pt")["best"]["epoch"] == 2


def test_overwrite_deletes_nothing_before_the_new_run_can_start(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    shutil.copytree(alone, tmp_path, dirs_exist_ok=True)

    def read() -> dict[str, bytes]:
        files = (tmp_path / "checkpoints").glob("[!.]*")  # .lock has the number of a process
        return {path.name: path.read_bytes() for path in files}

    before = read()
    for mistake in (["--images", "nowhere"], ["--batch-size", "99"], ["--model", "nonsense"]):
        status, _, _ = run(ranks, 1, tmp_path, *data_flags(images), "--overwrite", *mistake)
        assert status == 2 and read() == before
    train(ranks, 1, tmp_path, images, "--overwrite", "--epochs", "1")
    assert last(tmp_path)["position"]["epoch"] == 1 and "epoch_0001.pt" not in read()


def call_main_in_float64(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py with float64 for torch's default: network, images, sums and moments are of it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return call_train(argv, folder)  # the report predicts in float32
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("stops", "flags"),
    [
        ([(2, 3), (1, 8)], ""),
        # Eleven images: the third step ends in the second pass over them.
        ([(1, 3), (2, 8)], "--epochs 2 --epoch-steps 4 --validation-images 1"),
        pytest.param([(2, 1), (1, 3), (4, 5), (2, 8)], "", marks=thorough),
        pytest.param([(1, 3), (4, 5), (1, 8)], SAMPLED, marks=thorough),
    ],
)
def test_resumed_in_mid_epoch_on_another_number_of_ranks(
    ranks: Ranks, images: Path, tmp_path: Path, stops: list[tuple[int, int]], flags: str
) -> None:
    """In float64 nothing but the order of sums is left: 1e-6 after 8 steps."""
    argv = ["--validation", "1", "--epochs", "4", *flags.split()]
    states = []
    for folder, path in ((tmp_path / "whole", [(2, 8)]), (tmp_path / "moved", stops)):
        for size, stop in path:
            more = ["--batch-size", str(4 // size), "--stop-after", str(stop)]
            more += [] if stop == path[0][1] else ["--resume"]
            train(ranks, size, folder, images, *argv, *more, program=call_main_in_float64)
            assert (last(folder)["position"]["step"] == 0) == (stop == 8)
        states.append(last(folder))
        assert states[-1]["images_per_step"] == 4
    whole, moved = ([each["model"], each["ema"], each["optimizer"]["state"]] for each in states)
    assert all(v.dtype == torch.float64 for v in whole[0].values() if v.is_floating_point())
    torch.testing.assert_close(moved, whole, rtol=0, atol=1e-6)


@thorough
@release
def test_a_learning_rate_is_found_alike_on_any_number_of_ranks(
    ranks: Ranks, images: Path, tmp_path: Path
) -> None:
    """It is a matter of the global batch: the same number, and in float64 the same weights to 1e-6."""
    curves, states = [], []
    for size in (1, 2, 4):
        folder = tmp_path / str(size)
        flags = ["--lr", "auto", "--batch-size", str(4 // size), "--stop-after", "3"]
        out = train(ranks, size, folder, images, *flags, program=call_main_in_float64)
        assert out.count("--learning-rate auto: ") == 1
        curves.append([float(row["loss"]) for row in rows(folder, "learning_rate.csv")])
        states.append(last(folder))
    for curve, state in zip(curves, states, strict=True):
        assert state["config"]["learning_rate"] == states[0]["config"]["learning_rate"]
        assert len(curve) == 60
        assert curve[:40] == pytest.approx(curves[0][:40], abs=1e-6)
        torch.testing.assert_close(state["model"], states[0]["model"], rtol=0, atol=1e-6)


def test_resumed_with_other_reading_processes(
    ranks: Ranks, images: Path, alone: Path, tmp_path: Path
) -> None:
    """In mid-epoch from none to two, and back: samples do not depend on who reads them."""
    train(ranks, 1, tmp_path, images, "--stop-after", "3")
    resume(ranks, 1, tmp_path, "--resume", "--workers", "2", "--stop-after", "7")
    resume(ranks, 1, tmp_path, "--resume", "--workers", "0")
    assert_same_state(last(tmp_path), last(alone))
