"""Masks of classes that overlap, as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import tifffile

from tests.prediction.models import write_model, write_photo
from tests.prediction.test_predict import run as run_predict
from unet_ddp import Predictor
from unet_ddp.extras.overlap.labels import OverlapLabels


def test_a_page_has_any_name_of_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("träe", "細胞", "b\udce4")
    write_model(tmp_path / "best.pt", OverlapLabels((1, 2, 4), names=names))
    photo = write_photo(tmp_path / "a.png")
    assert run_predict("a.png", "-m", "best.pt", "--mask-format", "tif") == 0
    with tifffile.TiffFile(tmp_path / "a_mask.tif") as file:
        assert ((file.asarray() > 0) == Predictor.from_checkpoint("best.pt")(photo).masks).all()
        assert [page.description for page in file.pages][:2] == [*names[:2]]
