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


def test_the_only_class_found_is_not_the_class_of_all_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_photo(tmp_path / "a.png")
    for limit, ends in ((0.5, "a_mask_2.png"), (1e-9, "; warning: all of it is 1")):
        write_model(tmp_path / "best.pt", OverlapLabels((1, 2), thresholds=(limit, 1 - 1e-9)))
        assert run_predict("a.png", "-m", "best.pt", "--overwrite") == 0
        line = capsys.readouterr().out.splitlines()[-1]
        assert line.endswith(ends)
