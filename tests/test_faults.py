"""What happens to a run from outside: signals, bad steps, full disks, dead processes."""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main, warm_python
from tests.test_programs import ROOT, TORCHRUN, TRAIN, python
from unet_ddp.runs import checkpoint

FLAGS = ["--width", "2", "--batch-size", "2", "--augmentation", "none", "--workers", "0"]

PLANTED = """
import os, signal, sys, torch
sys.path.insert(0, {root!r})
import train
from unet_ddp.training.guard import FiniteGuard
from unet_ddp.training import step as engine
look, gradients = FiniteGuard.look, engine.gradients
fault = {fault!r}

def planted_look(self, report, step):
    rank = self.world.rank
    if step == 3 and fault == "signal one rank" and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    if step == 3 and fault == "signal launcher" and rank == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    if step == 3 and fault == "interrupt" :
        os.kill(os.getpid(), signal.SIGINT)
    if step == 8 and fault == "interrupt group":
        os.killpg(0, signal.SIGINT)
    if step == 3 and fault == "die" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 3 and fault == "user signal" and rank == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
    if step == 3 and fault == "folder removed" and rank == 0:
        import shutil
        shutil.rmtree("checkpoints")
    if step == 3 and fault == "hang" and rank == 1:
        signal.pause()
    look(self, report, step)

def planted_gradients(state, batches, loss, preprocess, **how):
    if fault == "loss on one rank" and state.step == 1 and os.environ["RANK"] == "1":
        sound, loss = loss, lambda logits, masks: sound(logits * float("nan"), masks)
    losses = gradients(state, batches, loss, preprocess, **how)
    if fault.startswith("nan") and (state.step == 1 or fault == "nan always"):
        next(state.network.parameters()).grad.fill_(float("nan"))
    return losses

FiniteGuard.look, engine.gradients = planted_look, planted_gradients
if fault == "interrupt group":
    os.setsid()  # with its reading processes, as a shell starts a command
if __name__ == "__main__":
    train.main()
"""


def plant(folder: Path, fault: str) -> str:
    path = folder / "planted.py"
    path.write_text(PLANTED.format(root=str(ROOT), fault=fault))
    return str(path)


@pytest.mark.parametrize(
    ("fault", "start", "status"),
    [
        ("signal one rank", TORCHRUN, 1),  # torchrun's own status, whatever its workers'
        ("signal one rank", ["--nproc", "2"], 143),
        ("signal launcher", ["--nproc", "2"], 143),
        ("interrupt", [], 130),
    ],
)
def test_a_signal_stops_all_ranks_at_one_step(
    tmp_path: Path, fault: str, start: list[str], status: int
) -> None:
    make_set(tmp_path, 12)
    flags = [*data_flags(tmp_path), *FLAGS, "--epochs", "3"]
    program = plant(tmp_path, fault)
    before, after = ([*start, program], []) if start == TORCHRUN else ([program], start)
    done = warm_python(tmp_path, *before, *flags, *after)
    assert done.returncode == status, done.stderr
    name = "SIGINT" if fault == "interrupt" else "SIGTERM"
    assert f"stopped by {name} after step" in done.stdout
    own = start == TORCHRUN  # about its workers' statuses
    assert done.stderr.count("Traceback") == own
    place = checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"]
    size = 1 if fault == "interrupt" else 2
    steps = 11 // (2 * size)
    assert 3 <= place["epoch"] * steps + place["step"] <= 5
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


def test_the_documented_line_hears_sigusr1(tmp_path: Path) -> None:
    """As a cluster sends it before a job's end, to torchrun: it passes it on where it is told to."""
    make_set(tmp_path, 12)
    line = "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    assert line in (ROOT / "docs" / "reliability.md").read_text()
    flags = [*data_flags(tmp_path), *FLAGS, "--epochs", "99"]
    done = warm_python(tmp_path, *TORCHRUN, line, plant(tmp_path, "user signal"), *flags)
    assert done.returncode == 1
    assert "stopped by SIGUSR1 after step" in done.stdout, done.stderr
    place = checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"]
    assert place["epoch"] * 2 + place["step"] >= 3


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    make_set(tmp_path, 12)
    done = warm_python(tmp_path, *TORCHRUN, plant(tmp_path, "die"), *data_flags(tmp_path), *FLAGS)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) <= 1  # torchrun may end the survivor before it can speak
    assert all("has died" in line for line in said)
    assert checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"] is not None


def test_a_rank_that_hangs_ends_the_run(tmp_path: Path) -> None:
    make_set(tmp_path, 12)
    program = plant(tmp_path, "hang")
    done = warm_python(
        tmp_path, program, *data_flags(tmp_path), *FLAGS, "--nproc", "2", "--timeout", "5"
    )
    assert done.returncode != 0
    assert "rank 0 of 2 has waited too long for the others" in done.stderr
    assert "Traceback" not in done.stderr


def plain_run(folder: Path, *words: str) -> tuple[int, str, str]:
    return call_main("train", [*data_flags(folder), *FLAGS, *words], str(folder))


def planted_run(fault: str, folder: str, words: list[str]) -> tuple[int, str, str]:
    """A run with a fault, in this process."""
    space: dict[str, object] = {"__name__": "planted"}
    from unet_ddp.training import step as engine
    from unet_ddp.training.guard import FiniteGuard

    kept = FiniteGuard.look, engine.gradients
    try:
        exec(compile(PLANTED.format(root=str(ROOT), fault=fault), "planted", "exec"), space)
        return call_main("train", words, folder)
    finally:
        FiniteGuard.look, engine.gradients = kept  # type: ignore[method-assign]


def test_a_step_that_is_not_finite_changes_nothing_but_the_position(
    ranks: Ranks, tmp_path: Path
) -> None:
    make_set(tmp_path, 12)
    words = [*data_flags(tmp_path), *FLAGS, "--epochs", "2", "--ema", "0.9"]
    outcomes = ranks.run(2, planted_run, "nan once", str(tmp_path), words)
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    out = outcomes[0][1]
    assert out.count("skipped: its gradients came out as nan or infinity") == 2  # one in each epoch
    assert out.count("x.png") >= 8  # all four images of the step, of both ranks
    content = checkpoint.load(tmp_path / "checkpoints" / "last.pt")
    for part in ("model", "ema"):
        assert all(bool(v.isfinite().all()) for v in content[part].values())
    for state in content["optimizer"]["state"].values():
        assert all(bool(v.isfinite().all()) for v in state.values())


def test_a_loss_that_is_nan_on_one_rank_skips_the_step_on_all(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 12)
    words = [*data_flags(tmp_path), *FLAGS, "--epochs", "1"]
    outcomes = ranks.run(2, planted_run, "loss on one rank", str(tmp_path), words)
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes
    out = outcomes[0][1]
    assert out.count("skipped: its loss came out as nan or infinity") == 1
    assert out.count("x.png") >= 4  # both ranks' images
    model = checkpoint.load(tmp_path / "checkpoints" / "last.pt")["model"]
    assert all(bool(v.isfinite().all()) for v in model.values())


def test_a_folder_that_is_removed_is_told_and_the_end_is_rescued(
    ranks: Ranks, tmp_path: Path
) -> None:
    """While the run goes on: no hang, no lost work."""
    make_set(tmp_path, 12)
    (tmp_path / "rescue").mkdir()
    words = [*data_flags(tmp_path), *FLAGS, "--epochs", "2"]
    words += ["--rescue-dir", str(tmp_path / "rescue")]
    (outcome,) = ranks.run(1, planted_run, "folder removed", str(tmp_path), words)
    status, out, err = outcome
    assert status == 1
    assert "WARNING: " in out and "training goes on" in out
    # TensorBoard's own thread shows its traceback too, as it ends.
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "its files are in" in said[0]
    (rescued,) = (tmp_path / "rescue").glob("*/last.pt")
    assert checkpoint.load(rescued)["position"]["epoch"] == 2


def test_too_many_bad_steps_end_the_run(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 12)
    words = [*data_flags(tmp_path), *FLAGS, "--epochs", "9", "--max-bad-steps", "3"]
    outcomes = ranks.run(2, planted_run, "nan always", str(tmp_path), words)
    assert [status for status, _, _ in outcomes] == [1, 1]
    err = "".join(err for _, _, err in outcomes)
    assert err.count("error: ") == 1 and err.count("\n") == 1
    assert "stopped after 3 such steps in a row" in err and "--lr" in err
    model = checkpoint.load(tmp_path / "checkpoints" / "last.pt")["model"]
    assert all(bool(v.isfinite().all()) for v in model.values())


def test_a_skipped_step_leaves_weights_and_statistics(tmp_path: Path) -> None:
    from tests.network.test_unet import learn, small_state

    state = small_state()
    learn(state, 2)
    before = {k: v.clone() for k, v in state.network.state_dict().items()}
    state.step = 0
    state.network.outc.conv.weight.data[0] = math.inf
    learn(state, 1)
    after = state.network.state_dict()
    for name, value in before.items():
        if name != "outc.conv.weight":
            assert torch.equal(after[name], value), name


def test_nan_is_never_written(tmp_path: Path) -> None:
    from unet_ddp.errors import RunError
    from unet_ddp.runs.folder import RunFolder

    folder = RunFolder(tmp_path, writes=True)
    folder.write({"last.pt": {"model": {"w": torch.ones(2)}, "n": 1}}, "step 1")
    with pytest.raises(RunError, match=r"model\.w holds nan"):
        folder.write({"last.pt": {"model": {"w": torch.tensor([1.0, math.nan])}, "n": 2}}, "step 2")
    assert checkpoint.load(tmp_path / "last.pt")["n"] == 1


FULL_DISK = """
import resource, sys
sys.path.insert(0, {root!r})
import train
from unet_ddp.runs import checkpoint as files
save = files.save
def full(path, content, **how):
    limit = 3000 if {full!r} in str(path) else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save(path, content, **how)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
from unet_ddp.runs import folder
folder.save = full
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if __name__ == "__main__":
    train.main()
"""


def test_a_full_disk_is_survived_and_the_end_is_rescued(tmp_path: Path) -> None:
    """The system itself refuses to write more than 3000 bytes to any file in the run's folder."""
    make_set(tmp_path, 12)
    (tmp_path / "rescue").mkdir()
    program = tmp_path / "full.py"
    program.write_text(FULL_DISK.format(root=str(ROOT), full="checkpoints"))
    words = [*data_flags(tmp_path), *FLAGS, "--epochs", "2", "--nproc", "2"]
    words += ["--rescue-dir", str(tmp_path / "rescue")]
    done = warm_python(tmp_path, str(program), *words)
    assert done.returncode == 1
    assert done.stdout.count("WARNING: ") >= 2 and "training goes on" in done.stdout
    assert "epoch 2: loss" in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "its files are in" in said[0]
    rescued = list((tmp_path / "rescue").glob("*/last.pt"))
    assert len(rescued) == 1
    assert checkpoint.load(rescued[0])["position"]["epoch"] == 2
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


def test_a_dead_reading_process_is_named(tmp_path: Path) -> None:
    make_set(tmp_path, 12)
    program = tmp_path / "dying.py"
    program.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import train\n"
        "from unet_ddp.data.dataset import SegmentationDataset\n"
        "read = SegmentationDataset._read\n"
        "def dying(self, epoch, index):\n"
        "    if index == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return read(self, epoch, index)\n"
        "SegmentationDataset._read = dying\n"
        "if __name__ == '__main__': train.main()\n"
    )
    done = warm_python(tmp_path, str(program), *data_flags(tmp_path), *FLAGS[:-1], "1")
    assert done.returncode == 1
    assert "error: a reading process of rank 0 has died" in done.stderr
    assert "--workers" in done.stderr and "Traceback" not in done.stderr


def test_a_reading_process_that_hangs_is_named(tmp_path: Path) -> None:
    """Within --timeout, by the rank whose it is: the other one's patience is longer."""
    make_set(tmp_path, 12)
    program = tmp_path / "hanging.py"
    program.write_text(
        "import signal, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import train\n"
        "from unet_ddp.data.dataset import SegmentationDataset\n"
        "read = SegmentationDataset._read\n"
        "def hanging(self, epoch, index):\n"
        "    if index == 4: signal.pause()\n"
        "    return read(self, epoch, index)\n"
        "SegmentationDataset._read = hanging\n"
        "if __name__ == '__main__': train.main()\n"
    )
    words = [*data_flags(tmp_path), *FLAGS[:-1], "1", "--timeout", "6", "--nproc", "2"]
    done = warm_python(tmp_path, str(program), *words)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "a reading process hangs" in said[0] and "--workers 0" in said[0]
    assert "Traceback" not in done.stderr


def small_shared_memory() -> bool:
    """Whether a process may be given a /dev/shm of its own here."""
    if shutil.which("unshare") is None:
        return False
    mount = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not small_shared_memory(), reason="only root can mount a small /dev/shm")
def test_shared_memory_that_is_too_small_is_named(tmp_path: Path) -> None:
    """As a container has it, by default."""
    make_set(tmp_path, 12, size=(420, 420))
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec"
    words = [TRAIN, *data_flags(tmp_path), *FLAGS[:-1], "1"]
    line = f"{mount} {shlex.join([sys.executable, *words])}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "error: a reading process of rank 0 finds no room for a batch" in done.stderr
    assert "--workers 0" in done.stderr and "--shm-size" in done.stderr
    assert "Traceback" not in done.stderr


def test_workers_survive_a_signal_to_the_whole_group(tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches the reading processes too: they read on until they are told."""
    make_set(tmp_path, 12)
    words = [*data_flags(tmp_path), *FLAGS[:-1], "1", "--epochs", "999"]
    done = warm_python(tmp_path, plant(tmp_path, "interrupt group"), *words)
    assert done.returncode == 130, done.stderr
    assert "epoch 1: loss" in done.stdout
    assert "stopped by SIGINT" in done.stdout and done.stderr == ""


def test_chaos() -> None:
    """Two kills at random moments, under real torchrun; see docs/reliability.md for more."""
    done = python(ROOT, "-m", "benchmarks.chaos", "--kills", "2", "--augmentation", "none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| final state bit-identical | yes |" in done.stdout
