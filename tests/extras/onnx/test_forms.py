"""Whole exports on images: what other programs get, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.prediction.models import noise, write_model
from tests.ranks import warm_python
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.data.labels import Labels
from unet_ddp.extras.demo_set.draw import write_demo

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("traced_once")]

LABELS = Labels((0, 200), names=("road", "car"))
THRESHOLD = 0.5001  # half of the pixels are cars
SIZES = (60, 90), (41, 67), (60, 90)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network, and images whose masks are its own predictions."""
    for name in ("onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="the extra onnx is not installed")
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "a.pt", LABELS, threshold=THRESHOLD)
    predictor = Predictor.from_checkpoint("a.pt")
    for folder in ("imgs", "masks"):
        (tmp_path / folder).mkdir()
    for k, (height, width) in enumerate(SIZES):
        blocks = noise(height // 4 + 1, width // 4 + 1, k).repeat(4, 0).repeat(4, 1)
        Image.fromarray(blocks[:height, :width]).save(f"imgs/{k}.png")
        predictor(f"imgs/{k}.png").to_image().save(f"masks/{k}.png")
    return tmp_path


def export(*words: str) -> int:
    scored = ["--images", "imgs", "--masks", "masks", "--runtime", "onnxruntime"]
    try:
        return main(["export", "a.pt", "a.onnx", *scored, *words])
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize("scale", ["0.5", pytest.param("0.25", marks=pytest.mark.release)])
def test_a_photo_has_one_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    """A network that is unsure of many pixels sees the demo set's JPEGs: as files, as pixels, exported."""
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    monkeypatch.chdir(tmp_path)
    write_demo(Path("demo"), "leaves")
    data = ["--images", "demo/imgs", "--masks", "demo/masks"]
    how = ["--width", "8", "--epochs", "1", "--epoch-steps", "20", "--workers", "0", "--seed", "1"]
    trained = warm_python(tmp_path, "-m", "unet_ddp", "train", *data, *how, "--scale", scale)
    assert trained.returncode == 0, trained.stderr
    assert main(["export", "checkpoints/best.pt", "a.onnx", "--whole"]) == 0
    predictor, session, equal = Predictor.from_checkpoint("checkpoints/best.pt"), open_file(), []
    for path in [*Path("demo/imgs").iterdir()][:40]:
        pixels = np.asarray(Image.open(path))
        Image.fromarray(pixels).save("a.png")
        expected = predictor(pixels).to_image()
        (masks,) = session.run(None, {"image": pixels[None]})
        for mask in (predictor(path).to_image(), predictor("a.png").to_image(), masks[0]):
            equal.append((np.asarray(mask) == np.asarray(expected)).mean())
    assert np.mean(equal) >= 0.9999


def open_file() -> Any:
    import onnx
    import onnxruntime

    onnx.checker.check_model("a.onnx", full_check=True)
    return onnxruntime.InferenceSession("a.onnx", providers=["CPUExecutionProvider"])


def test_one_file_goes_from_images_to_mask_values(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--whole") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "images (N, H, W, 3) of uint8 to mask values (N, H, W)" in lines[1]
    assert lines[3] == "  3 images in imgs: the checkpoint's Dice is 1.0000"
    session, predictor = open_file(), Predictor.from_checkpoint("a.pt")
    equal = []
    for k in range(len(SIZES)):
        image = np.asarray(Image.open(f"imgs/{k}.png"))
        (masks,) = session.run(None, {"image": np.stack([image, image[::-1]])})
        expected = np.asarray(predictor(image).to_image())
        assert masks.shape == (2, *image.shape[:2]) and masks.dtype == np.uint8
        assert {*np.unique(masks)} == {0, 200}
        equal.append((masks[0] == expected).mean())
    assert np.mean(equal) > 0.999
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["unet_ddp"])["labels"]["values"] == [0, 200]
    scores = json.loads(facts["unet_ddp_scores"])["onnxruntime"]
    assert scores["images"] == 3 and scores["equal_pixels"] == pytest.approx(np.mean(equal))
    assert abs(scores["dice_difference"]) <= 0.002 and scores["checkpoint_dice"] == 1
    text = Path("a.onnx").read_bytes()
    assert b"export.py" not in text and b"tracing.py" not in text  # no path of this machine
    fall = str(-scores["dice_difference"])
    assert float(fall) >= 0 and export("--whole", "--overwrite", "--tolerance", fall) == 0


def test_qgis_s_plugin_gets_probabilities_of_float_pixels(here: Path) -> None:
    """By the steps of its source: shares of 255, channels first, then its threshold."""
    assert export("--qgis") == 0
    session, predictor = open_file(), Predictor.from_checkpoint("a.pt")
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert taken.shape[-3] == 3 and given.shape[-3] == 1
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["class_names"]) == {"0": "road", "1": "car"}
    assert json.loads(facts["seg_thresh"]) == THRESHOLD
    pixels = noise(64, 64)[None]
    standard = (np.float32(pixels / 255.0) - 0) / 1
    (found,) = session.run(None, {taken.name: np.float32(standard.transpose(0, 3, 1, 2))})
    with_threshold = found[:, 0] >= THRESHOLD
    expected = predictor.models[0].backend
    import torch

    logits = expected(torch.from_numpy(pixels))
    assert np.allclose(logits.softmax(1)[:, 1].numpy(), found[:, 0], atol=1e-4)
    assert with_threshold.any() and not with_threshold.all()


@pytest.mark.release
def test_int8_is_refused_if_it_was_calibrated_on_noise(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ["--precision", "int8", "--tolerance", "0.05"]
    assert export(*good, "--calibration", "imgs") == 0
    assert (
        json.loads(open_file().get_modelmeta().custom_metadata_map["unet_ddp_scores"])[
            "onnxruntime"
        ]["dice"]
        > 0.95
    )
    size, before = Path("a.onnx").stat().st_size, Path("a.onnx").read_bytes()
    assert size < Path("a.pt").stat().st_size
    (here / "grey").mkdir()
    for k in range(2):
        grey = np.random.default_rng(k).integers(120, 130, (60, 90, 3), np.uint8)
        Image.fromarray(grey).save(f"grey/{k}.png")
    capsys.readouterr()
    assert export(*good, "--calibration", "grey", "--overwrite") == 1
    line = capsys.readouterr().err
    assert line.startswith(
        "error: a.onnx: not written: in onnxruntime, Dice falls from 1.0000 to 0."
    )
    assert "road" in line and "car" in line and "worst image: " in line and line.count("\n") == 1
    assert Path("a.onnx").read_bytes() == before
