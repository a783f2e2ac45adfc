"""The road counts what a photo and a step go through."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.road import measure


@pytest.mark.thorough
def test_the_roads_begin_and_end_where_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # which it sets, too
    photo, before, step = map(list, measure(tmp_path).values())
    assert photo[0] == "commands/predict.py:main" and before[0] == "commands/train.py:main"
    assert "prediction/predictor.py:Predictor.from_checkpoint" in photo
    assert {
        "prediction/source.py:open_image",
        "prediction/outputs/image_files.py:write_png",
    } <= set(photo)
    assert "runs/folder.py:RunFolder.claim" in before
    assert step[0] == "training/step.py:train_step" and "network/unet.py:UNet.forward" in step
    assert not set(step) & {"runs/folder.py:RunFolder.claim", "training/validation.py:count_pixels"}
