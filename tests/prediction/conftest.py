"""A folder to predict in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prediction.models import write_model
from unet_ddp.data.labels import Labels


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a checkpoint where predict.py looks for one."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "checkpoints" / "best.pt", Labels((0, 255)))
    return tmp_path
