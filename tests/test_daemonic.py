"""A daemonic process, as a worker of multiprocessing's Pool or of Celery, may start no processes to read images."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

import unet_ddp
from tests.conftest import make_set

SETTINGS = {"width": 2, "epochs": 1, "batch_size": 2, "device": "cpu"}
REFUSED = "^workers=2: this process may start no others; use workers=0$"


@pytest.fixture
def data(no_report: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(make_set(tmp_path, 10))
    monkeypatch.setattr(multiprocessing.current_process(), "daemon", True)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {*range(8)}, raising=False)
    return {"images": "imgs", "masks": "masks"}


def test_by_default_it_reads_them_itself(
    data: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = unet_ddp.train(**data, **SETTINGS)
    assert "0 reading processes" in capsys.readouterr().out
    assert unet_ddp.evaluate(run, **data, device="cpu", workers=None).images == 10
    with pytest.raises(unet_ddp.UserError, match=REFUSED):
        unet_ddp.evaluate(run, **data, device="cpu", workers=2)


def test_more_are_refused_before_the_run_begins(data: dict[str, str]) -> None:
    with pytest.raises(unet_ddp.UserError, match=REFUSED):
        unet_ddp.train(**data, **SETTINGS, workers=2)
    assert not Path("checkpoints").exists()
