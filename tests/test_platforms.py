"""Windows and macOS, imitated: one process trains, predicts, and scores without what Linux alone has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import make_set
from tests.ranks import ROOT, python

pytestmark = pytest.mark.processes

SCRIPT = """
import unet_ddp
from unet_ddp.__main__ import run

DATA = ["--images", "imgs", "--masks", "masks"]
TRAIN = [*DATA, "--epochs", "1", "--width", "2", "--batch-size", "2", "--device", "cpu", "--precision=float32"]


def call(*argv):
    try:
        status = run(argv[0], argv[1:])
    except SystemExit as end:
        status = end.code
    assert not status, (argv, status)


if __name__ == "__main__":
    call("train", *TRAIN, "--workers", "1", "--exp-name", "a")
    call("train", "--resume", "--exp-name", "a", "--workers", "0", "--epochs", "2")
    call("predict", "imgs", "-o", "found", "--model", "checkpoints/a")
    call("doctor", *DATA)
    call("evaluate", *DATA, "--model", "checkpoints/a")
    unet_ddp.Predictor.from_checkpoint("checkpoints/a/best.pt")("imgs/ax.png")
    try:
        unet_ddp.train(images="imgs", masks="masks", width=2, epochs=1, batch_size=2, nproc=2)
    except unet_ddp.UserError as error:
        print(error)
    print("all of it ran")
"""


@pytest.mark.parametrize("platform", ["win32", pytest.param("darwin", marks=pytest.mark.release)])
@pytest.mark.thorough
def test_all_commands_of_one_process_run(tmp_path: Path, platform: str) -> None:
    make_set(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    place = {"PRETEND": platform, "PYTHONIOENCODING": "cp1252"}
    path = os.pathsep.join([str(ROOT / "tests" / "foreign"), str(ROOT)])
    done = python(tmp_path, "script.py", PYTHONPATH=path, **place)
    assert "all of it ran" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "checkpoints" / "a" / "last.1.pt").exists()
    assert ("--nproc 2: not on Windows" in done.stdout) == (platform == "win32")
    assert (tmp_path / "checkpoints" / "last.pt").exists() == (platform == "darwin")
