"""Exported networks are the network: in onnxruntime, in torch, and for predict.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import predict
from tests.prediction.test_predict import write_model, write_photo
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.data.labels import Labels
from unet_ddp.runs import checkpoint

LABELS = Labels((0, 200), palette=((1, 2, 3),) * 200 + ((4, 5, 6),), names=("road", "car"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "a.pt", LABELS, threshold=0.5)
    return tmp_path


def test_onnx_is_the_network_and_predicts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    assert main(["export", "a.pt", "a.onnx"]) == 0
    assert "probabilities differ by at most" in capsys.readouterr().out
    session = onnxruntime.InferenceSession("a.onnx", providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["unet_ddp"])
    assert about["classes"] == ["road", "car"] and about["threshold"] == 0.5
    assert about["preprocessing"]["scale"] == 0.5
    by_torch, by_onnx = (Predictor.from_checkpoint(f"a.{end}") for end in ("pt", "onnx"))
    assert by_onnx.threshold == 0.5 and by_onnx.labels == LABELS
    for size in ((64, 64), (90, 71), (33, 34), (12, 200)):
        image = np.random.default_rng(size).integers(0, 256, (*size, 3), dtype=np.uint8)
        found, expected = (p(image).probabilities for p in (by_onnx, by_torch))
        assert np.abs(found - expected).max() < 1e-4
        pixels = np.stack([image, image[::-1]])
        logits, probabilities = session.run(None, {"pixels": pixels})
        assert logits.shape == (2, 2, *size)
        assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    write_photo(here / "photo.png")
    assert predict.main(["photo.png", "-m", "a.onnx", "-o", "by_onnx.png"]) == 0
    assert predict.main(["photo.png", "-m", "a.pt", "-o", "by_torch.png"]) == 0
    masks = [np.asarray(Image.open(f"by_{way}.png")) for way in ("onnx", "torch")]
    assert np.array_equal(*masks) and set(np.unique(masks[0])) == {0, 200}
    assert predict.main(["photo.png", "-m", "a.onnx", "a.pt", "-o", "both.png"]) == 0
    assert np.array_equal(np.asarray(Image.open("both.png")), masks[0])


def test_torchs_exported_program_is_the_network(here: Path) -> None:
    assert main(["export", "a.pt", "a.pt2", "--format", "torch"]) == 0
    files = {"unet_ddp.json": ""}
    program = torch.export.load("a.pt2", extra_files=files).module(check_guards=False)
    assert json.loads(files["unet_ddp.json"])["labels"]["values"] == [0, 200]
    predictor = Predictor.from_checkpoint("a.pt")
    pixels = np.random.default_rng(0).integers(0, 256, (1, 57, 80, 3), dtype=np.uint8)
    with torch.no_grad():
        logits, _ = program(torch.from_numpy(pixels))
    difference = (logits[:, 1] - logits[:, 0]).numpy() - predictor.scores(list(pixels))[:, 0]
    assert np.abs(difference).max() < 1e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.pt", "a.gif"], "ends in .onnx"),
        (["a.pt", "a.onnx", "--format", "torch"], "ends in .pt2"),
        (["nowhere.pt", "b.pt2", "--format", "torch"], "nowhere.pt: no such checkpoint"),
        (["a.pt", "there.pt2", "--format", "torch"], "--overwrite"),
        (["a.pt"], "the file to write"),
    ],
)
def test_mistakes(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (here / "there.pt2").write_bytes(b"mine")
    assert main(["export", *words]) == 2
    err = capsys.readouterr().err
    assert (
        err.startswith("error: ") and err.count("\n") == 1 and said in err.lower().replace("\n", "")
    )
    assert {path.name for path in here.iterdir()} == {"a.pt", "there.pt2"}


def test_without_the_extra(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photo(here / "photo.png")
    (here / "b.onnx").write_bytes(b"any")
    for name in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", "a.pt", "a.onnx"]) == 2
    assert predict.main(["photo.png", "-m", "b.onnx"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("pip install 'unet-ddp[onnx]'" in line for line in lines)
    assert {path.name for path in here.iterdir()} == {"a.pt", "b.onnx", "photo.png"}


def test_onnx_files_that_are_no_use(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    write_photo(here / "photo.png")
    (here / "b.onnx").write_bytes(b"any")
    assert predict.main(["photo.png", "-m", "b.onnx"]) == 2
    assert "no ONNX file" in capsys.readouterr().err
    assert "threshold" in checkpoint.load(here / "a.pt")
