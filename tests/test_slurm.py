"""deploy/slurm.sbatch on a Slurm of this machine; tests/test_deploy.py imitates one where there is none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import SBATCH
from tests.conftest import data_flags, make_set
from tests.hosts import wait_for
from tests.ranks import ROOT, Ranks, call_train
from tests.slurm import IS_INSTALLED, Slurm
from tests.test_resume import assert_same_state
from unet_ddp.checkpoints import file as checkpoint

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.release,
    pytest.mark.processes,
    pytest.mark.skipif(not IS_INSTALLED, reason="no slurmctld, slurmd and munged on this machine"),
]

ASK_ONCE = """
import os, pathlib, subprocess

class AskOnce:
    def __init__(self, run):
        self.asked = pathlib.Path("asked")

    def step(self, report, done):
        if done >= 3 and not self.asked.exists():
            self.asked.touch()
            subprocess.run(["scancel", "--batch", "--signal=USR1", os.environ["SLURM_JOB_ID"]])
"""

ASK_FIRST = """
import os, subprocess, time

class AskFirst:
    def __init__(self, run):
        subprocess.run(["scancel", "--batch", "--signal=USR1", os.environ["SLURM_JOB_ID"]])
        time.sleep(60)

    def close(self):
        pass
"""


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    slurm = Slurm()
    yield slurm
    slurm.close()


def submit(slurm: Slurm, folder: Path, *argv: str, nodes: int = 1) -> str:
    """Run the batch script until it has left the queue; return its output."""
    shutil.copy(ROOT / "train.py", folder)
    given = [
        "--job-name=cells",
        f"--nodes={nodes}",
        "--gpus-per-node=1",
        "--cpus-per-task=1",
        "--time=10",
    ]
    job = slurm.ask("sbatch", "--parsable", *given, str(SBATCH), *argv, folder=folder).strip()
    log = folder / f"cells-{job}.out"
    wait_for(lambda: not slurm.has_jobs(), log, 180)
    return log.read_text(encoding="utf-8")


def test_a_job_on_two_nodes_saves_queues_itself_again_and_ends_with_the_same_bits(
    tmp_path: Path, slurm: Slurm, ranks: Ranks
) -> None:
    flags = [*data_flags(make_set(tmp_path, 36, size=(32, 32))), "--width", "2", "--epochs", "3"]
    flags += ["--validation", "17", "--batch-size", "1", "--workers", "0", "--exp-name", "cells"]
    flags += ["--augmentation", "none"]
    straight = tmp_path / "straight"
    straight.mkdir()
    outcomes = ranks.run(2, call_train, flags, str(straight))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes

    (tmp_path / "ask.py").write_text(ASK_ONCE, encoding="utf-8")
    text = submit(slurm, tmp_path, *flags, "--callback", "ask:AskOnce", nodes=2)
    stop = re.search(r"^stopped by SIGUSR1 after step (\d+)", text, flags=re.M)
    assert stop is not None, text
    again = re.search(r"^slurm\.sbatch: job \d+ is queued again", text, flags=re.M)
    assert again is not None and stop.start() < again.start() < text.index("resuming"), text
    epochs, steps = divmod(int(stop[1]), 15)
    assert re.search(rf"resuming .*: {epochs} epochs? and {steps} steps? are done", text), text
    assert text.endswith("slurm.sbatch: the run is complete\n") and "Traceback" not in text
    run = Path("checkpoints") / "cells" / "last.pt"
    one, other = (checkpoint.load(folder / run) for folder in (tmp_path, straight))
    assert_same_state(one, other, ema=False)


def test_a_job_with_a_mistake_ends_with_the_status_of_train_py(
    tmp_path: Path, slurm: Slurm
) -> None:
    text = submit(slurm, tmp_path, "--images", "nowhere", "--masks", "nowhere")
    assert "error: nowhere: not found" in text and "Traceback" not in text
    assert text.splitlines()[-1].startswith("slurm.sbatch: failed with status 2: see above")


def test_a_job_whose_time_is_too_short_for_a_step_ends(tmp_path: Path, slurm: Slurm) -> None:
    """It would be queued again forever."""
    (tmp_path / "ask.py").write_text(ASK_FIRST, encoding="utf-8")
    flags = [*data_flags(make_set(tmp_path, 8)), "--width", "2", "--epochs", "1", "--workers", "0"]
    text = submit(slurm, tmp_path, *flags, "--callback", "ask:AskFirst")
    assert text.count("is queued again") == 1, text
    assert text.splitlines()[-1].startswith("slurm.sbatch: no step was done since job"), text
    assert "a longer --time" in text
