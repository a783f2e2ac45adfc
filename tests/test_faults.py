"""Faults that a run meets: signals, bad steps, full disks, dead processes."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import faults
from tests.conftest import data_flags, make_set
from tests.faults import train_with
from tests.prediction.models import write_model, write_photo
from tests.ranks import PREDICT, ROOT, TORCHRUN, TRAIN, Ranks, warm_python
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels

pytestmark = pytest.mark.processes

FLAGS = ["--width", "2", "--batch-size", "2", "--augmentation", "none", "--workers", "0"]
FAULTS = faults.__file__
NPROC = ["--nproc", "2"]


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Return the flags of a run of 11 training images."""
    return [*data_flags(make_set(tmp_path, 12)), *FLAGS]


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(
    ("fault", "start", "status"),
    [
        ("signal to one rank", NPROC, 143),
        ("user signal to the launcher", NPROC, 138),
        ("interrupt", [], 130),
        pytest.param("signal to the launcher", NPROC, 143, marks=pytest.mark.thorough),
        # torchrun's own status, whatever its workers'
        *(
            pytest.param(fault, TORCHRUN, 1, marks=[pytest.mark.thorough, pytest.mark.release])
            for fault in ("signal to one rank", "user signal to the launcher")
        ),
    ],
)
def test_a_signal_stops_all_ranks_after_the_same_step(
    tmp_path: Path, images: list[str], fault: str, start: list[str], status: int
) -> None:
    flags, torchrun = [fault, *images, "--epochs", "3"], start == TORCHRUN
    if torchrun and "user" in fault:  # a cluster's, before a job's end: torchrun passes it on
        start = [*TORCHRUN, "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
        assert start[-1] in (ROOT / "docs" / "reliability.md").read_text()
    words = [*start, FAULTS, *flags] if torchrun else [FAULTS, *flags, *start]
    done = warm_python(tmp_path, *words)
    assert done.returncode == status, done.stderr
    name = {143: "SIGTERM", 138: "SIGUSR1", 130: "SIGINT"}.get(
        status, "SIGUSR1" if "user" in fault else "SIGTERM"
    )
    assert f"stopped by {name} after step" in done.stdout, done.stderr
    assert done.stderr.count("Traceback") == torchrun  # its own, about its workers' statuses
    position = checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"]
    steps_per_epoch = 11 // (2 if fault == "interrupt" else 4)
    assert 3 <= position["epoch"] * steps_per_epoch + position["step"] <= 5
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


@pytest.mark.parametrize(
    "start", [NPROC, pytest.param(TORCHRUN, marks=pytest.mark.thorough)], ids=["nproc", "torchrun"]
)
def test_a_rank_that_dies_is_named(tmp_path: Path, images: list[str], start: list[str]) -> None:
    words = [FAULTS, "a rank dies", *images]
    done = warm_python(tmp_path, *([*start, *words] if start == TORCHRUN else [*words, *start]))
    assert done.returncode == 1
    said = errors(done)
    assert len(said) <= 1 + (start == NPROC)  # a launcher may end the survivor before it speaks
    assert all("died" in line or "was ended by SIGKILL" in line for line in said)
    assert checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"] is not None


def test_a_rank_that_hangs_ends_the_run(tmp_path: Path, images: list[str]) -> None:
    done = warm_python(tmp_path, FAULTS, "a rank hangs", *images, *NPROC, "--timeout", "5")
    assert done.returncode != 0
    assert "rank 0 of 2 waited too long for the others" in done.stderr
    assert "Traceback" not in done.stderr


def assert_finite(folder: Path) -> None:
    content = checkpoint.load(folder / "checkpoints" / "last.pt")
    moments = content["optimizer"]["state"].values()
    for values in (content["model"], content.get("ema") or {}, *moments):
        assert all(bool(value.isfinite().all()) for value in values.values())


def test_a_skipped_step_changes_nothing_but_the_position(
    ranks: Ranks, tmp_path: Path, images: list[str]
) -> None:
    """Its images are named, of both ranks; once in each epoch, it ends no run."""
    flags = [*images, "--epochs", "2", "--ema", "0.9"]
    outcomes = ranks.run(2, train_with, "nan in each epoch", flags, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    out = outcomes[0][1]
    assert out.count("skipped: non-finite gradients") == 2
    assert out.count("x.png") >= 8
    with (tmp_path / "checkpoints" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["skipped_steps"] for row in rows] == ["1", "2"]
    parts = [float(row["dice_loss"]) + float(row["cross_entropy"]) for row in rows]
    assert [float(row["loss"]) for row in rows] == pytest.approx(parts)
    assert min(parts) > 1  # of an untrained network, not halved by the skipped step of two
    assert_finite(tmp_path)
    flags = ["--resume", "--epochs", "3", "--workers", "0"]  # counted over all starts of the run
    (_, out, _), _ = ranks.run(2, train_with, "nan in each epoch", flags, str(tmp_path))
    assert re.findall(r"\d+ in all", out) == ["3 in all"]


def test_a_loss_that_is_nan_on_one_rank_skips_the_step_on_all(
    ranks: Ranks, tmp_path: Path, images: list[str]
) -> None:
    flags = [*images, "--epochs", "1"]
    outcomes = ranks.run(2, train_with, "nan loss on one rank", flags, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    out = outcomes[0][1]
    assert out.count("skipped: non-finite loss") == 1
    assert out.count("x.png") >= 4  # both ranks' images
    assert_finite(tmp_path)


def test_too_many_bad_steps_end_the_run(ranks: Ranks, tmp_path: Path, images: list[str]) -> None:
    flags = [*images, "--epochs", "9", "--max-bad-steps", "3"]
    outcomes = ranks.run(2, train_with, "nan for ever", flags, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [1, 1]
    err = "".join(err for _, _, err in outcomes)
    assert err.count("error: ") == 1 and err.count("\n") == 1
    assert "stopped after 3 skipped steps in a row" in err and "--lr" in err
    assert_finite(tmp_path)


@pytest.mark.parametrize(("fault", "size"), [("the folder is removed", 1), ("full disk", 2)])
def test_a_run_that_can_not_save_goes_on_and_its_end_is_rescued(
    ranks: Ranks, tmp_path: Path, images: list[str], fault: str, size: int
) -> None:
    (tmp_path / "rescue").mkdir()
    flags = [*images, "--epochs", "2", "--rescue-dir", str(tmp_path / "rescue")]
    outcomes = ranks.run(size, train_with, fault, flags, str(tmp_path))
    assert [status for status, _, _ in outcomes] == [1] * size, outcomes
    out, err = outcomes[0][1], "".join(err for _, _, err in outcomes)
    assert "warning: " in out and "training continues" in out
    # TensorBoard's own thread may show its traceback too, as it ends.
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "its files are in" in said[0]
    (rescued,) = (tmp_path / "rescue").glob("*/last.pt")
    assert checkpoint.load(rescued)["position"]["epoch"] == 2
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


@pytest.mark.parametrize(
    ("fault", "how", "said"),
    [
        ("dies", [], ["a reading process died", "--workers"]),
        # The rank whose it is says so within --timeout: the other one waits longer.
        ("hangs", ["--timeout", "6", *NPROC], ["a reading process hangs", "--workers 0"]),
    ],
)
def test_a_reading_process_that_fails_is_named(
    tmp_path: Path, images: list[str], fault: str, how: list[str], said: list[str]
) -> None:
    words = [FAULTS, f"a reading process {fault}", *images, "--workers", "1", *how]
    done = warm_python(tmp_path, *words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    (line,) = errors(done)
    assert all(part in line for part in said)


def run_with_little_room(
    folder: Path, place: str, size: str, command: list[str]
) -> subprocess.CompletedProcess[str]:
    """Run `command` in `folder`, for which the folder `place` is a disk of that size."""
    mount = shlex.join(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place])
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && exec {shlex.join(command)}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def can_mount() -> bool:
    """Return whether a process may get a disk for itself here."""
    if shutil.which("unshare") is None:
        return False
    return run_with_little_room(ROOT, "/dev/shm", "1m", ["true"]).returncode == 0


only_root = pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk")


@pytest.mark.thorough
@only_root
def test_shared_memory_that_is_too_small_is_named(tmp_path: Path) -> None:
    """A container has little by default."""
    make_set(tmp_path, 12, size=(420, 420))
    train = [sys.executable, TRAIN, *data_flags(tmp_path), *FLAGS, "--workers", "1"]
    done = run_with_little_room(tmp_path, "/dev/shm", "1m", train)
    assert done.returncode == 1
    (said,) = errors(done)
    assert "shared memory is full" in said
    assert "--workers 0" in said and "--shm-size" in said
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@only_root
def test_a_full_disk_is_one_line_of_predict(tmp_path: Path) -> None:
    """The process would end by SIGBUS if a mapped file found no room."""
    write_model(tmp_path / "m.pt", Labels((0, 255)))
    write_photo(tmp_path / "a.png")
    (tmp_path / "full").mkdir()
    flags = ["a.png", "-m", "m.pt", "-o", "full/b.png", "--probabilities", "npy"]
    done = run_with_little_room(tmp_path, "full", "16k", [sys.executable, PREDICT, *flags])
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    (said,) = errors(done)
    assert "full/b_probabilities.npy: can't be written: No space left" in said
    assert said.endswith("make room, or use another --output")


def test_reading_processes_survive_a_signal_to_the_whole_group(
    tmp_path: Path, images: list[str]
) -> None:
    """Ctrl-C in a terminal reaches them too: they read on until their rank ends them."""
    flags = [*images, "--workers", "1", "--epochs", "999"]
    done = warm_python(tmp_path, FAULTS, "interrupt of the group", *flags)
    assert done.returncode == 130, done.stderr
    assert "epoch 1: loss" in done.stdout
    assert "stopped by SIGINT" in done.stdout and done.stderr == ""


@pytest.mark.thorough
def test_chaos() -> None:
    """Kills at random moments, under real torchrun; docs/reliability.md has more of them."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "--kills", "2", "--augmentation", "none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| final state bit-identical | yes |" in done.stdout
