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
from tests.ranks import Ranks, call_main, warm_python

ROOT = Path(__file__).parent.parent
FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "2", "--workers", "0"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2"]
LAUNCH = ["-W", "ignore::FutureWarning", "-m", "torch.distributed.launch", "--nproc_per_node=2"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as in conftest.py
TRAIN, PREDICT = str(ROOT / "train.py"), str(ROOT / "predict.py")


def python(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **ONE_THREAD, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=hear_interrupts,
    )


def hear_interrupts() -> None:
    """A shell has its background jobs ignore SIGINT, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


STARTS = {
    "python": [TRAIN],
    "torchrun": [*TORCHRUN, TRAIN],
    "launch": [*LAUNCH, TRAIN],
    "nproc": [TRAIN, "--nproc", "2"],
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Started]:
    """A run by each way to start one, side by side: each waits for much of its time."""
    return {
        name: Started(make_set(tmp_path_factory.mktemp(name), 10), start)
        for name, start in STARTS.items()
    }


class Started:
    """A run that has been started in `folder`."""

    def __init__(self, folder: Path, start: list[str]) -> None:
        self.folder = folder
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, *start, *data_flags(folder), *FLAGS],
                cwd=folder,
                env={**os.environ, **ONE_THREAD},
                stdout=out,
                stderr=err,
            )

    def end(self) -> tuple[int, str, str]:
        """Its exit status, output and errors."""
        status = self.process.wait(120)
        return status, (self.folder / "out").read_text(), (self.folder / "err").read_text()


@pytest.mark.parametrize("name", STARTS)
def test_every_start_trains_and_predicts(started: dict[str, Started], name: str) -> None:
    status, out, err = started[name].end()
    assert status == 0, err
    assert out.count("epoch 2: loss") == 1  # one process speaks
    assert ("on each of 2 process(es)" in out) == (name != "python")
    for trace in ("Traceback", "Warning: "):
        assert trace not in err
    home = started[name].folder
    folder = home / "checkpoints"
    files = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    kept = {"best.pt", "last.pt", "last.1.pt", "config.yaml", "metrics.csv", "samples.png"}
    kept |= {"split.csv", "report.html"}
    assert files == {*kept, ".lock"}
    assert any("tfevents" in path.name for path in folder.iterdir())
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    if name == "python":
        predicted = python(home, PREDICT, "imgs/ax.png")
        assert predicted.returncode == 0, predicted.stderr
        assert (home / "imgs" / "ax_mask.png").exists()
        assert predicted.stderr == ""


@pytest.mark.parametrize(
    ("start", "status"), [([*TORCHRUN, TRAIN], 1), ([TRAIN, "--nproc", "2"], 2)]
)
def test_a_mistake_is_said_once(tmp_path: Path, start: list[str], status: int) -> None:
    """torchrun itself exits with 1, and reports that its workers exited with 2."""
    make_set(tmp_path, 4)
    (tmp_path / "masks" / "bx.png").unlink()
    done = warm_python(tmp_path, *start, *data_flags(tmp_path), *FLAGS)
    assert done.returncode == status
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == [
        line for line in done.stderr.splitlines() if "no mask for" in line
    ]
    assert done.stderr.count("no mask for") == 1
    if status == 1:
        assert "exitcode  : 2" in done.stderr


def test_a_wrong_flag_is_said_once_under_torchrun(tmp_path: Path) -> None:
    done = warm_python(tmp_path, *TORCHRUN, TRAIN, "--epohcs", "3")
    assert done.stderr.count("error: ") == 1


def test_torchrun_restarts_resume_by_themselves(ranks: Ranks, tmp_path: Path) -> None:
    """A rank is killed once, after the first epoch: the restarted run goes on and ends."""
    make_set(tmp_path, 10)
    program = tmp_path / "killed_once.py"
    program.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import train\n"
        "from unet_ddp.data.samplers import TrainingSampler\n"
        "start_at = TrainingSampler.start_at\n"
        "def killed(self, epoch, step):\n"
        "    if epoch == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        if os.environ['RANK'] == '1':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    start_at(self, epoch, step)\n"
        "TrainingSampler.start_at = killed\n"
        "train.main()\n"
    )
    words = [*data_flags(tmp_path), *FLAGS, "--augmentation", "none"]
    done = warm_python(tmp_path, *TORCHRUN, "--max-restarts=1", str(program), *words)
    assert done.returncode == 0, done.stderr
    assert "1 epochs and 0 steps are done" in done.stdout
    # Another torchrun's run is not picked up by accident, at its restart either.
    ((status, _, err),) = ranks.run(1, restarted, words, str(tmp_path))
    assert status == 2 and "holds a run" in err


def restarted(words: list[str], folder: str) -> tuple[int, str, str]:
    """train.py as another torchrun starts it for the second time."""
    variables = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
    os.environ.update(variables)
    try:
        return call_main("train", words, folder)
    finally:
        for name in variables:
            del os.environ[name]


def test_demo_set_where_there_is_no_data(tmp_path: Path) -> None:
    done = warm_python(tmp_path, TRAIN, "--width", "2", "--max-steps", "1", "--workers", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no data: data/imgs and data/masks are empty")
    assert len(list((tmp_path / "data" / "demo" / "imgs").iterdir())) == 160
    written = warm_python(tmp_path, "-m", "unet_ddp", "demo-data", "--folder", "again")
    assert written.returncode == 0
    first, again = (
        (tmp_path / f / "imgs" / "scene00_0.jpg").read_bytes() for f in ("data/demo", "again")
    )
    assert first == again
