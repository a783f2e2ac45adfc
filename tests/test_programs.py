"""The commands that people type, as programs."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests import faults
from tests.conftest import data_flags, make_set
from tests.prediction.models import write_model
from tests.ranks import (
    PREDICT,
    ROOT,
    TORCHRUN,
    TRAIN,
    Ranks,
    call_main,
    hear_interrupts,
    python,
    warm_python,
)
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.run_files import find_files
from unet_ddp.data.labels import Labels

pytestmark = pytest.mark.processes
thorough, release = pytest.mark.thorough, pytest.mark.release

FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "2", "--workers", "0"]
LAUNCH = ["-W", "ignore::FutureWarning", "-m", "torch.distributed.launch", "--nproc_per_node=2"]
PLAIN = [TRAIN, "--augmentation", "none"]  # which each rank would import
STARTS = {
    "python": [TRAIN],
    "torchrun, and a restart": [*TORCHRUN, "--max-restarts=1", faults.__file__, "a rank dies once"],
    "torchrun": [*TORCHRUN, *PLAIN],
    "launch": [*LAUNCH, *PLAIN],
    "nproc": [*PLAIN, "--nproc", "2"],
}
Finished = Callable[[str], tuple[Path, subprocess.CompletedProcess[str]]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A function that returns the folder and the outcome of a run that was started in a way."""

    @functools.cache
    def run(name: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
        folder = make_set(tmp_path_factory.mktemp(name.split(",")[0]), 10)
        return folder, python(folder, *STARTS[name], *data_flags(folder), *FLAGS)

    return run


@pytest.mark.parametrize(
    "name",
    [
        "python",
        pytest.param("torchrun", marks=thorough),
        *(
            pytest.param(name, marks=[thorough, release])
            for name in ("nproc", "launch", "torchrun, and a restart")
        ),
    ],
)
def test_every_start_trains_and_predicts(finished: Finished, name: str) -> None:
    home, done = finished(name)
    err = done.stderr
    assert done.returncode == 0, err
    assert done.stdout.count("epoch 2: loss") == 1  # one process prints
    assert ("on each of 2 processes" in done.stdout) == (name != "python")
    assert "Traceback" not in err and "Warning: " not in err, err
    folder = home / "checkpoints"
    files = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    assert files == {
        "best.pt", "last.pt", "last.1.pt", "config.yaml", "run.json", "split.csv", "metrics.csv",
        "samples.png", "report.html", ".lock",
    }  # fmt: skip
    assert any("tfevents" in path.name for path in folder.iterdir())
    assert {path.name for path in find_files(folder)} == {p.name for p in folder.iterdir()} - {
        ".lock"
    }
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    if name == "python":
        predicted = warm_python(home, PREDICT, "imgs/ax.png")
        assert (predicted.returncode, predicted.stderr) == (0, "")
        assert (home / "imgs" / "ax_mask.png").exists()


@pytest.mark.parametrize(
    ("start", "status"),
    [([TRAIN, "--nproc", "2"], 2), pytest.param([*TORCHRUN, TRAIN], 1, marks=[thorough, release])],
    ids=["nproc", "torchrun"],
)
def test_a_mistake_is_said_once(tmp_path: Path, start: list[str], status: int) -> None:
    """torchrun itself exits with 1, and reports that its workers exited with 2."""
    make_set(tmp_path, 4)
    (tmp_path / "masks" / "bx.png").unlink()
    done = warm_python(tmp_path, *start, *data_flags(tmp_path), *FLAGS)
    assert done.returncode == status
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "no mask for" in said  # torchrun's report ends with it, too
    if status == 1:
        assert "exitcode  : 2" in done.stderr
        done = warm_python(tmp_path, *start, "--epohcs", "3")
        assert done.stderr.count("error: ") == 1


LOST = """
import os, runpy, sys
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 2)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("program", [TRAIN, PREDICT])
def test_lost_output_of_ranks_and_predictions(tmp_path: Path, program: str) -> None:
    """`train.py > /full/disk 2> >(head -1)`: it is shown to nobody, and all is saved."""
    (tmp_path / "lost.py").write_text(LOST)
    argv = [*data_flags(make_set(tmp_path, 10)), *FLAGS, "--nproc", "2"]
    if program == PREDICT:
        write_model(tmp_path / "m.pt", Labels((0, 255)))
        argv = ["imgs", "-m", "m.pt", "-o", "out"]
    assert warm_python(tmp_path, "lost.py", program, *argv).returncode == 0
    if program == PREDICT:
        assert len(list((tmp_path / "out").iterdir())) == 10
    else:
        content = checkpoint.load(tmp_path / "checkpoints" / "last.pt")
        assert content["position"]["epoch"] == 2


NPROC = [TRAIN, "--nproc", "2"]


def imports(process: int) -> bool:
    """Return whether a process has begun to import torch."""
    with contextlib.suppress(OSError):
        return "libtorch" in Path(f"/proc/{process}/maps").read_text()
    return False


def child_imports(process: int) -> bool:
    return any(map(imports, children(process)[-1:]))


def starts(process: int) -> bool:
    """Return whether there are the tracker of resources, the first process, perhaps the second.

    Another thread of theirs hears a signal then, and the second never gets what it is to do.
    """
    return len(children(process)) >= 2


def children(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    return []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("argv", "is_time"),
    [
        pytest.param(NPROC, starts, marks=thorough),
        *(pytest.param(NPROC, starts, marks=[thorough, release]) for _ in "ab"),
        pytest.param(NPROC, child_imports, marks=thorough),
        pytest.param([TRAIN], imports, marks=thorough),
        *(
            pytest.param(argv, imports, marks=[thorough, release])
            for argv in (
                [PREDICT, "x.png"],
                ["-m", "unet_ddp", "train"],
                ["-m", "unet_ddp", "doctor"],
            )
        ),
    ],
)
def test_ctrl_c_in_the_first_seconds_has_no_traceback(
    tmp_path: Path, argv: list[str], is_time: Callable[[int], bool]
) -> None:
    process = subprocess.Popen(
        [sys.executable, *argv],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until and not is_time(process.pid):
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


CONSOLE = re.findall('^unet-ddp = "(.+):(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[0]


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("import {} as program; program.{}()".format(*CONSOLE), "--version"),
        ("import runpy; runpy.run_module('unet_ddp', run_name='__main__')", "--version"),
        *(
            pytest.param(
                f"import runpy; runpy.run_path({path!r}, run_name='__main__')",
                "--help",
                marks=thorough,
            )
            for path in (TRAIN, PREDICT)
        ),
    ],
)
def test_ctrl_c_while_python_ends_has_no_traceback(tmp_path: Path, program: str, word: str) -> None:
    """The work is done; libraries still run functions of theirs."""
    ends = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    done = python(tmp_path, "-c", f"{ends}; {program}", word)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "") and done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([PREDICT, "x.png", "--nproc", "2"], b"stopped; continue with --skip-existing\n"),
        pytest.param(NPROC, b"", marks=thorough),
    ],
)
def test_sigterm_of_a_launcher_whose_processes_import_is_its_status(
    tmp_path: Path, argv: list[str], said: bytes
) -> None:
    """As kill or a cluster ends it: only the launcher gets the signal. One line, said once."""
    process = subprocess.Popen(
        [sys.executable, *argv], cwd=tmp_path, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        if len(children(process.pid)) > 2 and child_imports(process.pid):  # and the tracker
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, said)


@thorough
def test_torchrun_restarts_resume_by_themselves(ranks: Ranks, finished: Finished) -> None:
    """A rank was killed once, in the second epoch: the restarted run has gone on to its end."""
    folder, done = finished("torchrun, and a restart")
    assert "1 epoch and 0 steps are done" in done.stdout
    # Another torchrun's run is not picked up by accident, at its restart either.
    flags = [*data_flags(folder), *FLAGS]
    ((status, _, err),) = ranks.run(1, restarted, flags, str(folder))
    assert status == 2 and "contains a run" in err


def restarted(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py as another torchrun starts it for the second time."""
    variables = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
    with mock.patch.dict(os.environ, variables):
        return call_main("train", argv, folder)


def test_the_demo_set_is_used_where_there_is_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unet_ddp.extras.demo_set.draw.CARS", 3)
    argv = ["--width", "2", "--stop-after", "1", "--workers", "0"]
    status, out, err = call_main("train", argv, str(tmp_path))
    assert status == 0, err
    assert out.startswith("no data: data/imgs and data/masks are empty")
    assert len(list((tmp_path / "data" / "demo" / "imgs").iterdir())) == 3 * 16


@thorough
def test_a_mistake_is_said_once_in_all_attempts_of_torchrun_and_ends_its_report(
    tmp_path: Path,
) -> None:
    flags = ["--images", "nowhere", "--masks", "nowhere"]
    done = python(tmp_path, *TORCHRUN, "--max-restarts=1", TRAIN, *flags)
    assert done.stderr.count("error: nowhere: not found") == 1, done.stderr
    assert "traceback : nowhere: not found" in done.stderr.splitlines()[-2], done.stderr
