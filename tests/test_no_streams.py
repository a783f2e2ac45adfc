"""A process without standard output and errors, as of pythonw and of services, has the same results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from absl import logging  # noqa: F401  # keeps the stream that it finds, to close it

import unet_ddp
from tests.conftest import make_set
from tests.test_api import ENDED


def test_all_calls_work_without_streams(
    no_report: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sees their bars and lines, nor the warning that others may write to the cache folder."""
    monkeypatch.chdir(make_set(tmp_path, 10))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "unet_ddp").mkdir()
    (tmp_path / "unet_ddp").chmod(0o777)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    data = {"images": "imgs", "masks": "masks"}
    assert unet_ddp.check(**data).training
    settings = {"width": 2, "epochs": 1, "batch_size": 2, "workers": 0, "device": "cpu"}
    run = unet_ddp.train(**data, **settings)
    unet_ddp.train(resume=True, epochs=2, log="json")
    assert unet_ddp.evaluate(run, **data, device="cpu").images == 10
    assert run.predictor()("imgs/ax.png").mask.size
    assert unet_ddp.export(run.path / "best.pt", "net.onnx").path.is_file()


@pytest.mark.processes
def test_what_other_processes_print_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    argv = [sys.executable, "-Sc", ENDED, "nowhere: not found", "2"]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **how: start(argv, **how))
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(unet_ddp.UserError, match="nowhere: not found"):
        unet_ddp.train(images="imgs", masks="masks", nproc=2)
