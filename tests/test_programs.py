"""The commands that people type, as programs."""

from __future__ import annotations

import contextlib
import csv
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
from unet_ddp.data.labels import Labels

pytestmark = pytest.mark.processes

FLAGS = ["--width", "2", "--epochs", "2", "--batch-size", "2", "--workers", "0"]
LAUNCH = ["-W", "ignore::FutureWarning", "-m", "torch.distributed.launch", "--nproc_per_node=2"]
RESTART = [*TORCHRUN, "--max-restarts=1", faults.__file__, "a rank dies once"]
STARTS = {
    "python": [TRAIN],
    "torchrun, and a restart": RESTART,
    "torchrun": [*TORCHRUN, TRAIN],
    "launch": [*LAUNCH, TRAIN],
    "nproc": [TRAIN, "--nproc", "2"],
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
        "torchrun, and a restart",
        *(pytest.param(n, marks=pytest.mark.thorough) for n in ("torchrun", "launch", "nproc")),
    ],
)
def test_every_start_trains_and_predicts(finished: Finished, name: str) -> None:
    home, done = finished(name)
    err = done.stderr
    assert done.returncode == 0, err
    assert done.stdout.count("epoch 2: loss") == 1  # one process prints
    assert ("on each of 2 process(es)" in done.stdout) == (name != "python")
    for trace in ("Traceback", "Warning: "):
        assert trace not in err, err
    folder = home / "checkpoints"
    files = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    assert files == {
        "best.pt", "last.pt", "last.1.pt", "config.yaml", "split.csv", "metrics.csv",
        "samples.png", "report.html", ".lock", ".files",
    }  # fmt: skip
    assert any("tfevents" in path.name for path in folder.iterdir())
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    if name == "python":
        predicted = python(home, PREDICT, "imgs/ax.png")
        assert predicted.returncode == 0, predicted.stderr
        assert (home / "imgs" / "ax_mask.png").exists()
        assert predicted.stderr == ""


@pytest.mark.parametrize(
    ("start", "status"),
    [
        ([TRAIN, "--nproc", "2"], 2),
        pytest.param([*TORCHRUN, TRAIN], 1, marks=pytest.mark.thorough),
    ],
    ids=["nproc", "torchrun"],
)
def test_a_mistake_is_said_once(tmp_path: Path, start: list[str], status: int) -> None:
    """torchrun itself exits with 1, and reports that its workers exited with 2."""
    make_set(tmp_path, 4)
    (tmp_path / "masks" / "bx.png").unlink()
    done = warm_python(tmp_path, *start, *data_flags(tmp_path), *FLAGS)
    assert done.returncode == status
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "no mask for" in said
    assert done.stderr.count("no mask for") == 1
    if status == 1:
        assert "exitcode  : 2" in done.stderr


@pytest.mark.thorough
def test_a_run_whose_output_is_lost_ends_as_any_other(tmp_path: Path) -> None:
    """`train.py 2> /full/disk | head -1`: it is shown to nobody, and every epoch is saved."""
    make_set(tmp_path, 10)
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        train = subprocess.run(
            [sys.executable, TRAIN, *data_flags(tmp_path), *FLAGS],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=writer,
            stderr=full,
            timeout=120,
            check=False,
        )
    os.close(writer)
    assert train.returncode == 0
    position = checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"]
    assert position["epoch"] == 2


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "argv",
    [
        [TRAIN, "--nproc", "2"],
        *(
            pytest.param(argv, marks=pytest.mark.thorough)
            for argv in (
                [TRAIN],
                [PREDICT, "x.png"],
                ["-m", "unet_ddp", "train"],
                ["-m", "unet_ddp", "doctor"],
            )
        ),
    ],
)
def test_ctrl_c_in_the_first_seconds_has_no_traceback(tmp_path: Path, argv: list[str]) -> None:
    """While torch is being imported, in the processes of --nproc too."""

    def imports(process: int) -> bool:
        starting = children(process)[-1:] if "--nproc" in argv else [process]
        return any("libtorch" in read_maps(each) for each in starting)

    assert interrupt_when(imports, argv, tmp_path) == (130, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_while_processes_are_started_has_no_traceback(tmp_path: Path) -> None:
    """Another thread of theirs hears it, and the second process never gets what it is to do."""

    def starts(process: int) -> bool:
        return (
            len(children(process)) >= 2
        )  # the tracker of resources, the first, perhaps the second

    for _ in range(3):
        assert interrupt_when(starts, [TRAIN, "--nproc", "2"], tmp_path) == (130, b"")


def interrupt_when(
    is_time: Callable[[int], bool], argv: list[str], folder: Path
) -> tuple[int, bytes]:
    """Start a program, interrupt its group when it is time; return its status and its errors."""
    process = subprocess.Popen(
        [sys.executable, *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until and not is_time(process.pid):
        pass
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def children(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]
    return []


def read_maps(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/maps").read_text()
    return ""


@pytest.mark.thorough
def test_a_wrong_flag_is_said_once_under_torchrun(tmp_path: Path) -> None:
    done = warm_python(tmp_path, *TORCHRUN, TRAIN, "--epohcs", "3")
    assert done.stderr.count("error: ") == 1


def test_torchrun_restarts_resume_by_themselves(ranks: Ranks, finished: Finished) -> None:
    """A rank was killed once, in the second epoch: the restarted run has gone on to its end."""
    folder, done = finished("torchrun, and a restart")
    assert "1 epochs and 0 steps are done" in done.stdout
    # Another torchrun's run is not picked up by accident, at its restart either.
    flags = [*data_flags(folder), *FLAGS]
    ((status, _, err),) = ranks.run(1, restarted, flags, str(folder))
    assert status == 2 and "contains a run" in err


def restarted(argv: list[str], folder: str) -> tuple[int, str, str]:
    """Run train.py as another torchrun starts it for the second time."""
    variables = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
    os.environ.update(variables)
    try:
        return call_main("train", argv, folder)
    finally:
        for name in variables:
            del os.environ[name]


def test_the_demo_set_is_used_where_there_is_no_data(tmp_path: Path) -> None:
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
