"""The commands that people type, as processes of their own."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import data_flags, make_set

ROOT = Path(__file__).parent.parent
FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "2", "--workers", "0"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2"]
LAUNCH = ["-W", "ignore::FutureWarning", "-m", "torch.distributed.launch", "--nproc_per_node=2"]
TRAIN, PREDICT = str(ROOT / "train.py"), str(ROOT / "predict.py")


def python(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=hear_interrupts,
    )


def hear_interrupts() -> None:
    """A shell has its background jobs ignore SIGINT, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "start",
    [[TRAIN], [*TORCHRUN, TRAIN], [*LAUNCH, TRAIN], [TRAIN, "--nproc", "2"]],
    ids=["python", "torchrun", "launch", "nproc"],
)
def test_every_start_trains_and_predicts(tmp_path: Path, start: list[str]) -> None:
    make_set(tmp_path, 10)
    done = python(tmp_path, *start, *data_flags(tmp_path), *FLAGS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 2: loss") == 1  # one process speaks
    assert ("on each of 2 process(es)" in done.stdout) == (start != [TRAIN])
    for trace in ("Traceback", "Warning: "):
        assert trace not in done.stderr
    folder = tmp_path / "checkpoints"
    files = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    kept = {"best.pt", "last.pt", "last.1.pt", "config.yaml", "metrics.csv", "samples.png"}
    kept |= {"split.csv", "report.html"}
    assert files == {*kept, ".lock"}
    assert any("tfevents" in path.name for path in folder.iterdir())
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    if start == [TRAIN]:
        predicted = python(tmp_path, PREDICT, "imgs/ax.png")
        assert predicted.returncode == 0, predicted.stderr
        assert (tmp_path / "imgs" / "ax_mask.png").exists()
        assert predicted.stderr == ""


@pytest.mark.parametrize(
    ("start", "status"), [([*TORCHRUN, TRAIN], 1), ([TRAIN, "--nproc", "2"], 2)]
)
def test_a_mistake_is_said_once(tmp_path: Path, start: list[str], status: int) -> None:
    """torchrun itself exits with 1, and reports that its workers exited with 2."""
    make_set(tmp_path, 4)
    (tmp_path / "masks" / "bx.png").unlink()
    done = python(tmp_path, *start, *data_flags(tmp_path), *FLAGS)
    assert done.returncode == status
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        line for line in done.stderr.splitlines() if "no mask for" in line
    ]
    assert done.stderr.count("no mask for") == 1
    if status == 1:
        assert "exitcode  : 2" in done.stderr


def test_a_wrong_flag_is_said_once_under_torchrun(tmp_path: Path) -> None:
    done = python(tmp_path, *TORCHRUN, TRAIN, "--epohcs", "3")
    assert done.stderr.count("error: ") == 1


def test_torchrun_restarts_resume_by_themselves(tmp_path: Path) -> None:
    """A rank is killed once, after the first epoch: the restarted run goes on and ends."""
    make_set(tmp_path, 10)
    program = tmp_path / "killed_once.py"
    program.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import train\n"
        "from unet_ddp.data.loaders import TrainingSampler\n"
        "start_at = TrainingSampler.start_at\n"
        "def killed(self, epoch, step):\n"
        "    if epoch == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        if os.environ['RANK'] == '1':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    start_at(self, epoch, step)\n"
        "TrainingSampler.start_at = killed\n"
        "train.main()\n"
    )
    done = python(
        tmp_path, *TORCHRUN, "--max-restarts=1", str(program), *data_flags(tmp_path), *FLAGS
    )
    assert done.returncode == 0, done.stderr
    assert "1 epochs and 0 steps are done" in done.stdout
    again = python(
        tmp_path, *TORCHRUN, "--max-restarts=1", str(program), *data_flags(tmp_path), *FLAGS
    )
    assert again.returncode != 0  # another torchrun's run is not picked up by accident
    assert "holds a run" in again.stderr


def test_demo_set_where_there_is_no_data(tmp_path: Path) -> None:
    done = python(tmp_path, TRAIN, "--width", "2", "--max-steps", "1", "--workers", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no data: data/imgs and data/masks are empty")
    assert len(list((tmp_path / "data" / "demo" / "imgs").iterdir())) == 160
    written = python(tmp_path, "-m", "unet_ddp", "demo-data", "--folder", "again")
    assert written.returncode == 0
    first, again = (
        (tmp_path / f / "imgs" / "scene00_0.jpg").read_bytes() for f in ("data/demo", "again")
    )
    assert first == again
