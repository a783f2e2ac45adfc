"""Exported networks are the network: in onnxruntime, and for predict.py."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.prediction.models import CPU, load, make_predictor, noise, write_model, write_photo
from tests.prediction.test_predict import run as run_predict
from unet_ddp import Predictor
from unet_ddp.__main__ import main
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import RunError, UserError, how_to_install
from unet_ddp.extras.onnx import export as module
from unet_ddp.extras.onnx import runtimes
from unet_ddp.extras.onnx.export import ExportConfig, export
from unet_ddp.extras.onnx.tracing import LARGEST_DIFFERENCE, Exported, largest_difference

LABELS = Labels((0, 200), palette=((1, 2, 3),) * 200 + ((4, 5, 6),), names=("road", "car"))


@pytest.fixture
def here(traced_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "a.pt", LABELS, threshold=0.5)
    return tmp_path


def run(*argv: str) -> int:
    try:
        return main(["export", *argv])
    except SystemExit as stop:
        return int(stop.code or 0)


def test_onnx_is_the_network_and_predicts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    assert run("a.pt", "a.onnx") == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == "a.onnx: classic U-Net of width 4, transposed upsampling, 3 channels, 2 classes, float32"
    )
    assert (
        "(N, H, W, 3) of uint8, at scale 0.5, to logits and probabilities (N, 2, H, W)" in lines[1]
    )
    assert lines[2].startswith("  probabilities differ by at most ") and "131x97" in lines[2]
    assert lines[3:] == [
        "  not scored: a.pt does not say which images it was validated on; use --images and --masks"
    ]
    session = onnxruntime.InferenceSession("a.onnx", providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["unet_ddp"])
    assert metadata["classes"] == ["road", "car"] and metadata["threshold"] == 0.5
    assert metadata["preprocessing"]["scale"] == 0.5 and metadata["colours"] == [
        [1, 2, 3],
        [4, 5, 6],
    ]
    by_torch, by_onnx = (Predictor.from_checkpoint(f"a.{end}") for end in ("pt", "onnx"))
    assert by_onnx.threshold == 0.5 and by_onnx.labels == LABELS and by_onnx.stride == 16
    backend = by_onnx.models[0].backend
    assert backend.bytes_per_pixel == 4 * 6 * 4
    assert backend.session.get_session_options().log_severity_level == 4  # our line alone
    for size in ((64, 64), (90, 71), (33, 34), (12, 200)):
        image = noise(*size)
        found, expected = (p(image).probabilities for p in (by_onnx, by_torch))
        assert np.abs(found - expected).max() < 1e-4
        logits, probabilities = session.run(None, {"pixels": np.stack([image, image[::-1]])})
        assert logits.shape == (2, 2, *size)
        assert np.allclose(torch.from_numpy(logits).softmax(1), probabilities, atol=1e-5)
    write_photo(here / "photo.png")
    assert run_predict("photo.png", "-m", "a.onnx", "-o", "by_onnx.png") == 0
    assert run_predict("photo.png", "-m", "a.pt", "-o", "by_torch.png") == 0
    masks = [np.asarray(Image.open(f"by_{way}.png")) for way in ("onnx", "torch")]
    assert np.array_equal(*masks) and set(np.unique(masks[0])) == {0, 200}
    assert run_predict("photo.png", "-m", "a.onnx", "a.pt", "-o", "both.png") == 0
    assert np.array_equal(np.asarray(Image.open("both.png")), masks[0])
    capsys.readouterr()
    assert run_predict("photo.png", "-m", "a.onnx", "-s", "0.25", "--overwrite") == 2
    assert "--scale 0.25: this file has its scale, 0.5" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["a.onnx"], ["--card", "card"]])
def test_random_weights_are_not_exported_without_a_word(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A file of ours contains its scale: no line says another."""
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    begun = {"position": {"epoch": 0, "step": 0}, "config": {"epochs": 1}}
    checkpoint.save(here / "a.pt", {**checkpoint.load(here / "a.pt"), **begun})
    assert run("a.pt", *words) == 0
    out = capsys.readouterr().out
    assert "warning: a.pt: 0 steps trained: its weights are random\n" in out
    assert "images at scale" not in out


def test_the_exported_network_normalises_as_training_does() -> None:
    pixels = Preprocessing(2, (0.25, 0.5), (0.5, 2.0), 1.0, "int16", low=-100, high=300)
    module = Exported(torch.nn.Identity(), pixels)
    images = torch.tensor([[[[-100, 300]], [[300, -100]]]], dtype=torch.int16)  # (1, 2, 1, 2)
    logits, probabilities = module(images)
    assert torch.allclose(logits, pixels(images))
    assert logits[0, :, 0, 0].tolist() == [-0.5, 0.25]  # (0 - 0.25) / 0.5, (1 - 0.5) / 2
    assert torch.equal(probabilities, logits.softmax(1))


def test_a_file_that_computes_something_else_is_not_kept(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(torch.nn.Identity(), Labels((0, 1, 2)))
    module_ = Exported(torch.nn.Identity(), model.preprocessing)
    backend: Any = lambda pixels: module_(pixels)[0] * 1.01  # noqa: E731
    assert largest_difference(module_, backend, model.preprocessing) > 1e-4
    backend = lambda pixels: module_(pixels)[0]  # noqa: E731
    assert largest_difference(module_, backend, model.preprocessing) < 1e-6
    monkeypatch.setattr(module, "import_extra", lambda *_: None)
    monkeypatch.setattr(module, "trace_network", lambda *_: None)
    monkeypatch.setattr(module, "check_facts", lambda *_: None)
    monkeypatch.setattr(module, "write_graph", lambda graph, facts, path: path.write_text("x"))
    monkeypatch.setattr(module, "OnnxBackend", lambda *_: SimpleNamespace())
    monkeypatch.setattr(module, "largest_difference", lambda *args: 1.1e-4)
    monkeypatch.setattr(module, "largest_rounding", lambda *args: 2e-5)
    with pytest.raises(RunError, match=r"b\.onnx: not kept: .* 1\.1e-04 from those of a\.pt"):
        export(ExportConfig("a.pt", "b.onnx"))
    assert [path.name for path in here.iterdir()] == ["a.pt"]
    monkeypatch.setattr(module, "largest_difference", lambda *args: 1e-4)
    assert export(ExportConfig("a.pt", "b.onnx")) and (here / "b.onnx").read_text() == "x"
    assert make_predictor().device == CPU


@pytest.mark.thorough
@pytest.mark.release
def test_a_network_whose_own_rounding_is_large_is_exported(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logits that are huge and almost alike, as after few steps: float32 rounds them all by 1e-3."""
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    content = checkpoint.load(here / "a.pt")
    content["model"]["outc.conv.weight"] += 3e4
    checkpoint.save(here / "a.pt", content)
    assert run("a.pt", "a.onnx") == 0
    (found,) = re.findall(r"differ by at most (\S+) from", capsys.readouterr().out)
    assert float(found) > LARGEST_DIFFERENCE  # no file of it would be kept by this limit alone


def test_a_network_that_is_not_for_any_size_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PSPNet, whose pooling is exported for the example's size: by the file to write."""

    class Broken:
        def __init__(self, path: Path) -> None:
            self.path = path

        def __call__(self, pixels: torch.Tensor) -> None:
            raise UserError(f"{self.path}: can't be run on 96x64 pixels (Gather)")

    monkeypatch.setattr(module, "import_extra", lambda *_: None)
    monkeypatch.setattr(module, "trace_network", lambda *_: None)
    monkeypatch.setattr(module, "check_facts", lambda *_: None)
    monkeypatch.setattr(module, "write_graph", lambda graph, facts, path: path.write_text("x"))
    monkeypatch.setattr(module, "OnnxBackend", lambda path, *_: Broken(path))
    assert run("a.pt", "b.onnx") == 2
    assert capsys.readouterr().err == (
        "error: b.onnx: can't be run on 96x64 pixels (Gather); as an ONNX file in float32, unet has no form "
        "for images of any size: predict with a.pt, or train another --model\n"
    )
    assert [path.name for path in here.iterdir()] == ["a.pt"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a.pt", "a.gif"], "a.gif: the name must end in .onnx"),
        (["a.pt", "there.ONNX"], "there.onnx: already exists; use --overwrite"),
        (["nowhere.pt", "b.onnx"], "nowhere.pt: "),
        (["a.pt", "s3://bucket/b.onnx"], "s3://bucket/b.onnx: is an address"),
        (["a.pt", "b.onnx", "-s", "0.5"], "--scale 0.5"),
        (["a.pt", "b.onnx", "--whole", "--qgis"], "--whole and --qgis: use one of them"),
        (["a.pt", "b.onnx", "--images", "."], "--images and --masks: use both or neither"),
        (["a.pt", "b.onnx", "--calibration", "."], "--calibration: is for --precision int8"),
        (["a.pt", "b.onnx", "--tolerance", "2"], "--tolerance 2"),
        *(
            (
                ["a.pt", "b.onnx", *words],
                "a.pt does not say which images it was validated on; use --images and --masks",
            )
            for words in (
                ["--whole"],
                ["--qgis"],
                ["--precision", "int8"],
                ["--precision", "float16"],
                ["--runtime", "onnxruntime"],
            )
        ),
        (["a.pt"], "file"),
    ],
)
def test_mistakes(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    argv: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "import_extra", lambda *_: None)
    (here / "there.ONNX").write_bytes(b"mine")
    assert run(*argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err.lower()
    assert {path.name for path in here.iterdir()} == {"a.pt", "there.ONNX"}


def test_an_export_does_not_replace_its_checkpoint(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "import_extra", lambda *_: None)
    (here / "a.onnx").hardlink_to(here / "a.pt")
    before = (here / "a.onnx").read_bytes()
    (here / "run").mkdir()
    (here / "run" / "best.pt").hardlink_to(here / "a.pt")
    for given, read in (("a.pt", "a.pt"), ("run", "run/best.pt")):
        assert run(given, "a.onnx", "--overwrite") == 2
        message = f"error: export a.onnx: would replace the checkpoint {read}; name another file\n"
        assert capsys.readouterr().err == message and (here / "a.onnx").read_bytes() == before


def test_without_the_extra(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photo(here / "photo.png")
    (here / "b.onnx").write_bytes(b"any")
    for name in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run("a.pt", "a.onnx") == 2
    assert run_predict("photo.png", "-m", "b.onnx") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(how_to_install("onnx") in line for line in lines)
    assert {path.name for path in here.iterdir()} == {"a.pt", "b.onnx", "photo.png"}


def test_onnxruntime_is_told_not_to_report_before_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks for its maker's server some seconds after its import."""
    seen = []
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    monkeypatch.setattr(
        runtimes, "import_module", lambda name: seen.append(os.environ["ORT_DISABLE_TELEMETRY"])
    )
    runtimes.import_extra("onnxruntime", "onnx", Path("a.onnx"))
    assert seen == ["1"]
    with pytest.raises(ImportError):  # OpenVINO reports with it that it was imported
        __import__("openvino_telemetry")


def test_onnx_files_that_can_not_be_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    write_photo(here / "photo.png")
    (here / "b.onnx").write_bytes(b"any")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value], [out])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), "other.onnx")
    for name, message in (("b", "no ONNX file, or a corrupt one"), ("other", "not exported by")):
        assert run_predict("photo.png", "-m", f"{name}.onnx") == 2
        assert f"error: {name}.onnx: {message}" in capsys.readouterr().err
