"""`unet_ddp.train(...)`: the run of train.py, started from Python."""

from __future__ import annotations

import io
import math
import os
import pty
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unet_ddp
from tests.conftest import data_flags, make_set
from tests.network.test_own_network import NAME
from tests.network.test_own_network import SOURCE as NETWORK
from tests.ranks import ROOT, TORCHRUN, TRAIN, call_main, hear_interrupts, python, warm_python
from tests.training.test_own_loss import SOURCE
from unet_ddp.distributed.stop_signal import SIGNALS
from unet_ddp.training.step import seed_all

SETTINGS = {"width": 2, "epochs": 2, "batch_size": 2, "workers": 0, "seed": 3, "device": "cpu"}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
PARTS = f"""
{SOURCE}

class Notes:
    def __init__(self, run): pass
    def epoch(self, row): print("error: 0.25 of this epoch, in the user's words")
"""

AGAIN = """
import subprocess, sys
from pathlib import Path
import unet_ddp

class Again:
    def __init__(self, run): pass
    def epoch(self, row):
        try:
            unet_ddp.train(resume=True, device="cpu", workers=0)
            said = "let in"
        except unet_ddp.UserError as error:
            said = str(error)
        code = "from pathlib import Path; from unet_ddp.runs.lock import lock_folder; lock_folder(Path('checkpoints'), '--x')"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        Path("said.txt").write_text(said + "\\n" + other.stderr.splitlines()[-1])
"""


@pytest.fixture
def images(no_report: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_set(tmp_path, 10)


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(run / "last.pt", weights_only=True)["model"]
    return found


def assert_same_weights(one: Path, other: Path) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=0)


def test_a_run_from_python_is_that_of_the_command_line(images: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    precision = torch.get_float32_matmul_precision()
    run = unet_ddp.train(
        images="imgs", masks=Path("masks"), exp_name="here", precision="float32", **SETTINGS
    )
    assert torch.get_float32_matmul_precision() == precision
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    status, _, _ = call_main(
        "train", ["--exp-name", "there", "--precision=float32", *FLAGS, *data_flags(images)], "."
    )
    assert status == 0 and run.path == Path("checkpoints/here").absolute()
    assert_same_weights(run.path, Path("checkpoints/there"))
    assert [row["epoch"] for row in run.metrics] == [1, 2]
    assert all(0 <= row["validation_dice"] <= 1 for row in run.metrics)
    prediction = run.predictor(device="cpu")("imgs/ax.png")
    assert prediction.to_image().size == (32, 24)


def test_a_predictor_has_the_own_network_of_its_run(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train` was given its path; of an earlier run the checkpoint alone does not start it."""
    (images / "my_networks.py").write_text(NETWORK)
    (images / "moved.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(images)
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    settings: dict[str, Any] = {**SETTINGS, "epochs": 1, "model": NAME}
    run = unet_ddp.train(images="imgs", masks="masks", **settings)
    assert run.predictor(device="cpu")("imgs/ax.png").to_image().size == (32, 24)
    assert run.predictor(device="cpu", network="moved:Tiny").stride == 2
    with pytest.raises(unet_ddp.UserError, match=f"--network {NAME}"):
        unet_ddp.TrainedRun(run.path).predictor(device="cpu")


def test_a_run_goes_on(images: Path) -> None:
    where: dict[str, Any] = {"images": "imgs", "masks": "masks", **SETTINGS}
    unet_ddp.train(**where, stop_after="1epochs", exp_name="stopped")
    run = unet_ddp.train(resume=True, exp_name="stopped", device="cpu", workers=0)
    whole = unet_ddp.train(**where, exp_name="whole", resume=Path("whole").exists())
    assert_same_weights(run.path, whole.path)


def test_a_budget_begins_with_the_call(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook may have worked for hours before."""
    monkeypatch.setattr(time, "process_time", lambda: 7200.0)
    where: dict[str, Any] = {**SETTINGS, "epochs": None}
    run = unet_ddp.train(images="imgs", masks="masks", budget="1h", stop_after="1epochs", **where)
    assert len(run.metrics) == 1


def test_a_row_that_a_crash_cut_off_has_nan(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,loss,seconds\n1,0.5,2\n2,1.0e-")
    _, last = unet_ddp.TrainedRun(tmp_path).metrics
    assert last["epoch"] == 2 and math.isnan(last["loss"]) and math.isnan(last["seconds"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epoch": 3}, "did you mean epochs?"),
        (
            {"lr": 1e-3, "learning_rate": 2e-3},
            "lr and learning_rate: are one setting; use one of them",
        ),
        ({"bilinear": "false"}, "bilinear: 'false'; expected True or False"),
        ({"epochs": 0}, "--epochs 0: must be 1 or more"),
        ({"images": "nowhere", "masks": "masks"}, "nowhere"),
        ({"loss": type("Nowhere", (), {})}, "%%writefile parts.py"),
        ({"augmentation": lambda image, mask, generator: (image, mask)}, "%%writefile parts.py"),
        ({"images": "imgs", "masks": "masks", "nproc": 2, "crop_size": (9, 9)}, "16 or more"),
    ],
)
def test_a_mistake_is_an_error_of_one_line(
    images: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(unet_ddp.UserError) as caught:
        unet_ddp.train(**settings)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not Path("checkpoints").exists()


def test_a_thread_is_refused_before_the_folder_is_made(images: Path) -> None:
    caught: list[unet_ddp.UserError] = []

    def work() -> None:
        with pytest.raises(unet_ddp.UserError) as error:
            unet_ddp.train(images="imgs", masks="masks", **SETTINGS)
        caught.append(error.value)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0]) and not Path("checkpoints").exists()


def test_a_run_leaves_the_process_as_it_was(images: Path) -> None:
    """Its cores are those of each new thread, its folder is found from any other, and no name is too long."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run = unet_ddp.train(images="imgs", masks="masks", **{**SETTINGS, "epochs": 1})
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert found == [2]
    finally:
        torch.set_num_threads(before)
    os.chdir("imgs")  # the fixture goes back
    assert len(run.metrics) == 1
    with pytest.raises(unet_ddp.UserError, match="no such folder"):
        _ = unet_ddp.TrainedRun(Path("nowhere")).metrics
    with pytest.raises(unet_ddp.UserError, match="device nope: must be one of"):
        run.predictor(device="nope")
    with pytest.raises(unet_ddp.UserError, match="name too long"):
        unet_ddp.train(images=".", masks="../masks", exp_name="e" * 300, **SETTINGS)


def test_a_run_is_the_same_whatever_the_notebook_asked_of_torch(images: Path) -> None:
    """And the notebook has what it asked for, and its own random numbers, afterwards."""
    settings = {**SETTINGS, "images": "imgs", "masks": "masks", "epochs": 1}
    unet_ddp.train(**settings, exp_name="plain")

    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(1, device="cpu"))]

    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        seed_all(5)
        expected = draw()
        seed_all(5)
        with torch.inference_mode(), torch.no_grad():
            unet_ddp.train(**settings, exp_name="asked")
        assert (torch.get_default_device().type, torch.get_default_dtype()) == (
            "meta",
            torch.float64,
        )
        assert draw() == expected
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert_same_weights(Path("checkpoints/plain"), Path("checkpoints/asked"))


def test_scores_and_masks_are_the_same_whatever_the_notebook_asked_of_torch(images: Path) -> None:
    """Issue: evaluate and export ended in a traceback of torch, with another device or type as the default."""
    run = unet_ddp.train(**{**SETTINGS, "epochs": 1}, images="imgs", masks="masks")
    image = np.zeros((40, 40, 3), np.uint8)
    pytest.importorskip("onnxruntime")

    def ask() -> tuple[object, ...]:
        scored = unet_ddp.evaluate(run, "imgs", "masks", device="cpu")
        mask = run.predictor(device="cpu", tta="mirror")(image).mask
        written = unet_ddp.export(run, "m.onnx", runtime="onnxruntime", overwrite=True)
        return scored.dice, mask.tolist(), written.runtimes["onnxruntime"].dice, unet_ddp.check("imgs", "masks").problems  # fmt: skip

    expected = ask()
    for device, dtype in (("meta", torch.float32), ("cpu", torch.bfloat16)):
        torch.set_default_device(device)
        torch.set_default_dtype(dtype)
        try:
            assert ask() == expected
            assert (torch.get_default_device().type, torch.get_default_dtype()) == (device, dtype)
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)


def test_a_running_runs_folder_is_not_let_in_again(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the attempt unlock it, as a system's locks are the process's."""
    (images / "again.py").write_text(AGAIN)
    unet_ddp.train(
        images="imgs", masks="masks", callback="again:Again", **{**SETTINGS, "epochs": 1}
    )
    said = Path("said.txt").read_text().splitlines()
    assert "another run of this process" in said[0] and "another run uses it" in said[1]


@pytest.mark.thorough
@pytest.mark.processes
def test_a_script_without_a_guard_trains_on_two_processes(images: Path) -> None:
    """An own part beside it is found by the ranks; their lines come through; a mistake of theirs is raised."""
    (images / "parts.py").write_text(PARTS)
    script = """
        import unet_ddp
        from parts import SquaredDice

        print("once")
        where = dict(images="imgs", masks="masks", width=2, epochs=1, batch_size=1, workers=0, device="cpu",
                     augmentation="none")
        run = unet_ddp.train(**where, nproc=2, loss=SquaredDice, callback="parts:Notes", exp_name="two", seed=3)
        print("Dice", run.metrics[-1]["validation_dice"])
        try:
            unet_ddp.train(**where, nproc=2, exp_name="two")
        except unet_ddp.UserError as error:
            print("caught", error)
        """
    (images / "script.py").write_text(textwrap.dedent(script))
    path = os.pathsep.join([str(ROOT / "tests" / "forking"), str(ROOT)])
    done = python(images, "script.py", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("once") == 1 and "Dice" in done.stdout
    assert "epoch 1: loss" in done.stdout and "error: 0.25 of this epoch" in done.stdout
    assert "caught" in done.stdout and "contains a run" in done.stdout
    assert "\r" not in done.stdout + done.stderr  # no bar
    assert "error:" not in done.stderr
    argv = [*FLAGS, "--epochs=1", "--batch-size=1", "--nproc=2", *data_flags(images)]
    argv += ["--augmentation=none", "--loss=parts:SquaredDice", "--exp-name=typed"]
    done = warm_python(images, TRAIN, *argv)
    assert done.returncode == 0, done.stderr
    assert_same_weights(images / "checkpoints/two", images / "checkpoints/typed")


ENDED = """
import os, sys

said, status = sys.argv[1:]
print("error: the user's own", file=sys.stderr)
if said:
    print(os.environ["UNET_DDP_MARK"] + "error: " + said, file=sys.stderr)
sys.exit(int(status))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("said", "status", "error", "raised"),
    [
        ("nowhere: not found", 2, unet_ddp.UserError, "nowhere: not found"),
        ("the disk is full", 1, unet_ddp.RunError, "the disk is full"),
        ("", 1, unet_ddp.RunError, "a process of the run failed; its traceback is above"),
    ],
)
def test_the_end_of_other_processes_is_an_error_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: str,
    status: int,
    error: type[Exception],
    raised: str,
) -> None:
    """What they print without the mark is the user's, and is passed on."""
    start = subprocess.Popen
    argv = [sys.executable, "-Sc", ENDED, said, str(status)]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **how: start(argv, **how))
    with pytest.raises(error) as caught:
        unet_ddp.train(images="imgs", masks="masks", nproc=2)
    assert str(caught.value) == raised
    assert capsys.readouterr() == ("", "error: the user's own\n")


@pytest.mark.processes
@pytest.mark.thorough
@pytest.mark.release
def test_a_terminal_shows_the_bar_of_several_processes(images: Path) -> None:
    script = """
        import unet_ddp

        settings = dict(images="imgs", masks="masks", width=2, epochs=1, batch_size=1, workers=0)
        unet_ddp.train(**settings, nproc=2)
        try:
            unet_ddp.train(**settings, nproc=2)
        except unet_ddp.UserError as error:
            print("caught", error)
        """
    (images / "script.py").write_text(textwrap.dedent(script))
    terminal, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "script.py"], cwd=images, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the end
            while piece := os.read(terminal, 4096):
                shown += piece
    os.close(terminal)
    lines = shown.decode().replace("\r\n", "\n").splitlines()
    assert any(line.startswith("epoch 1/1: ") and "step/s" in line for line in lines), shown
    assert any(line.startswith("epoch 1: loss") for line in lines)
    assert "error: " not in shown.decode(), shown
    assert lines[-1].startswith("caught checkpoints contains"), shown


@pytest.mark.processes
@pytest.mark.thorough
def test_a_script_under_torchrun_joins_its_ranks(images: Path) -> None:
    script = """
        import unet_ddp

        run = unet_ddp.train(images="imgs", masks="masks", width=2, epochs=1, batch_size=1, workers=0)
        print(f"scored {run.metrics[-1]['validation_dice']}")
        unet_ddp.train(images="imgs", masks="nowhere")
        """
    (images / "script.py").write_text(textwrap.dedent(script))
    done = python(images, *TORCHRUN, "script.py")
    assert done.returncode != 0 and done.stderr.count("error: ") == 1, done.stderr
    assert done.stdout.count("scored 0.") == 2
    assert done.stdout.count("epoch 1: loss") == 1


@pytest.mark.processes
@pytest.mark.thorough
def test_ctrl_c_stops_the_ranks_and_the_run_goes_on(images: Path) -> None:
    script = """
        import unet_ddp

        settings = dict(images="imgs", masks="masks", width=2, epochs=100, batch_size=1, workers=0)
        try:
            unet_ddp.train(**settings, nproc=2)
        except KeyboardInterrupt:
            print("interrupted")
        run = unet_ddp.train(resume=True, stop_after="1")
        print("went on")
        """
    (images / "script.py").write_text(textwrap.dedent(script))
    lines = []
    with subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=images,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    ) as program:
        for line in program.stdout or ():
            lines.append(line)
            if "epoch 1: loss" in line:
                program.send_signal(signal.SIGINT)
    assert program.returncode == 0
    assert "interrupted\n" in lines and lines[-1] == "went on\n"
    assert torch.isfinite(weights(images / "checkpoints")["outc.conv.weight"]).all()


STOPPED = """
import signal, sys

number = int(sys.argv[1])
signal.pthread_sigmask(signal.SIG_BLOCK, {number})
print("training", flush=True)
signal.sigwait({number})
print("saved")
sys.exit(128 + number)
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_the_ranks_and_is_an_exception_here(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's own handler waits until they have saved, as with one process."""

    class Shown(io.StringIO):
        def write(self, text: str) -> int:
            if text == "training\n":
                os.kill(os.getpid(), number)
            return super().write(text)

    def end_at_once(number: int, frame: object) -> None:
        raise AssertionError("the ranks heard nothing")

    start, shown = subprocess.Popen, Shown()
    argv = [sys.executable, "-Sc", STOPPED, str(int(number))]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **how: start(argv, **how))
    monkeypatch.setattr(sys, "stdout", shown)
    is_ours = number != signal.SIGINT
    before = signal.signal(number, end_at_once if is_ours else signal.default_int_handler)
    try:
        with pytest.raises(SystemExit if is_ours else KeyboardInterrupt) as caught:
            unet_ddp.train(images="imgs", masks="masks", nproc=2)
        assert signal.getsignal(number) in (end_at_once, signal.default_int_handler)
    finally:
        signal.signal(number, before)
    assert shown.getvalue() == "training\nsaved\n"
    assert not isinstance(caught.value, SystemExit) or caught.value.code == 128 + number


@pytest.mark.parametrize(
    ("is_output", "is_error", "streams"), [(True, True, 1), (True, False, 2), (False, True, 2)]
)
def test_lines_and_bar_share_a_stream_where_both_are_seen(
    images: Path, monkeypatch: pytest.MonkeyPatch, is_output: bool, is_error: bool, streams: int
) -> None:
    started: list[dict[str, Any]] = []

    class NoStartError(Exception):
        pass

    def start(argv: list[str], **how: Any) -> Any:
        started.append(how)
        raise NoStartError

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_output, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_error, raising=False)
    with pytest.raises(NoStartError):
        unet_ddp.train(images="imgs", masks="masks", nproc=2)
    (how,) = started
    assert how["stdout"] == subprocess.PIPE
    assert how["stderr"] == (subprocess.STDOUT if streams == 1 else subprocess.PIPE)
