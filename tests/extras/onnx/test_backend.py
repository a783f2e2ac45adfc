"""Exported networks that are run by onnxruntime."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.prediction.models import CPU, noise, write_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.extras.onnx import runtimes as module
from unet_ddp.extras.onnx.backend import METADATA, OnnxBackend
from unet_ddp.extras.onnx.runtimes import import_extra
from unet_ddp.network.unet import UNet
from unet_ddp.prediction.backends import TorchBackend, mean_logits, open_model

PIXELS = Preprocessing.for_images(3, scale=1.0)


def test_onnx_files_are_opened_by_their_suffix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.ONNX: not found"):
        open_model(tmp_path / "a.ONNX", CPU)


def test_a_missing_extra_is_named_with_the_command_to_type() -> None:
    assert import_extra("json", "onnx", Path("a")).loads("1") == 1
    with pytest.raises(UserError, match=r"a\.onnx: needs no_such_package.* python -m pip install"):
        import_extra("no_such_package", "onnx", Path("a.onnx"))


FACTS = {
    "labels": Labels((0, 255)).to_dict(),
    "preprocessing": PIXELS.to_dict(),
    "threshold": None,
    "stride": 16,
    "bytes_per_pixel": 96,
    "classes": ["0", "255"],
    "colours": [[0, 0, 0], [255, 255, 255]],
}


class Session:
    """An onnxruntime.InferenceSession of one file."""

    def __init__(self, metadata: str, **changed: Any) -> None:
        self.metadata = metadata
        self.ends = {
            "pixels": ["N", "H", "W", 3], "logits": ["N", 2, "H", "W"], "type": "tensor(uint8)",
            "found": np.zeros((1, 2, 32, 32), np.float32), **changed,
        }  # fmt: skip

    def get_modelmeta(self) -> Any:
        return SimpleNamespace(custom_metadata_map={METADATA: self.metadata})

    def get_inputs(self) -> Any:
        shape = self.ends["pixels"]
        return [SimpleNamespace(name="pixels", type=self.ends["type"], shape=shape)][: shape != 0]

    def get_outputs(self) -> Any:
        shape = self.ends["logits"]
        return [SimpleNamespace(name="logits", type="tensor(float)", shape=shape)][: shape != 0]

    def run(self, *_: Any) -> list[Any]:
        if isinstance(self.ends["found"], Exception):
            raise self.ends["found"]
        return [self.ends["found"]]


def open_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session: Session, address: str | None = None
) -> Any:
    runtime = SimpleNamespace(
        SessionOptions=SimpleNamespace,
        InferenceSession=lambda *_, **__: session,
        get_available_providers=list,
    )
    monkeypatch.setattr(module, "import_extra", lambda *_: runtime)
    path = tmp_path / "a.onnx"
    path.touch()
    return open_model(address or path, CPU)


EXPORTS: list[tuple[str, Any, str]] = [
    ("labels", [], "labels: "), ("labels", {"kind": "classes", "values": [0, 70000]}, "labels: values: "),
    ("labels", {"kind": "classes", "values": [0, 1, 2]}, "logits"), ("preprocessing", 5, "preprocessing: "),
    ("preprocessing", {**PIXELS.to_dict(), "scale": -1}, "preprocessing: scale: -1"),
    ("preprocessing", {**PIXELS.to_dict(), "dtype": "uint16"}, "pixels"),
    ("preprocessing", Preprocessing.for_images(1, scale=1.0).to_dict(), "pixels"),
    ("threshold", "0.5", "threshold: "), ("threshold", float("nan"), "threshold: "),
    ("threshold", [], "threshold: "), ("stride", 0, "stride: 0"), ("stride", 33, "stride: 33"),
    ("stride", 2**20, "stride: "), ("stride", None, "stride: None"),
    ("bytes_per_pixel", -1, "bytes_per_pixel: "), ("bytes_per_pixel", 1e9, "bytes_per_pixel: "),
    ("bytes_per_pixel", 10**30, "bytes_per_pixel: "), ("classes", ["a"] * 10**5, "classes: "),
    ("runtimes", ["tensorrt"], "runtimes: "), ("form", 5, "form: "),
]  # fmt: skip


@pytest.mark.usefixtures("memory_store")
def test_addresses_are_read_as_files_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    labels = Labels((0, 255))
    write_model(tmp_path / "a.pt", labels)
    put(Url("s3://bucket/run/a.pt"), tmp_path / "a.pt")
    put(Url("s3://bucket/run/a.onnx"), b"")
    assert open_model("s3://bucket/run/a.pt", CPU).labels == labels
    session, address = Session(json.dumps(FACTS), found=ValueError()), "s3://bucket/run/a.onnx"
    model = open_session(monkeypatch, tmp_path, session, address)
    for each in (model, pickle.loads(pickle.dumps(model))):
        with pytest.raises(UserError, match=rf"^{address}: can't be run on 8x9 pixels"):
            each.backend(torch.zeros(1, 9, 8, 3))


def test_a_copy_opens_the_file_again_unless_it_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = np.random.default_rng(0).normal(size=(1, 2, 9, 8)).astype(np.float32)
    model = open_session(monkeypatch, tmp_path, Session(json.dumps(FACTS), found=found))
    pixels = torch.zeros(1, 9, 8, 3)
    packed = pickle.dumps(model)
    assert torch.equal(pickle.loads(packed).backend(pixels), model.backend(pixels))
    for change in (lambda path: path.write_text("other"), Path.unlink):
        change(tmp_path / "a.onnx")
        with pytest.raises(UserError, match=r"a\.onnx: was changed or removed .*; make it again"):
            pickle.loads(packed)


@pytest.mark.parametrize(("name", "value", "message"), EXPORTS)
def test_an_export_s_facts_are_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    session = Session(json.dumps({**FACTS, name: value}))
    with pytest.raises(UserError, match=rf"^{tmp_path / 'a.onnx'}: {message}"):
        open_session(monkeypatch, tmp_path, session)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "its metadata is not JSON"), ("{", "its metadata is not JSON"), ("[]", "."), ("3", "."),
        ('{"stride": ' + "9" * 5000 + "}", "its metadata is not JSON"),
        ("[" * 9999, "its metadata is not JSON"),
    ],
)  # fmt: skip
def test_an_export_s_metadata_must_be_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(UserError, match=rf"a\.onnx: {why}.*; export it again"):
        open_session(monkeypatch, tmp_path, Session(text))


@pytest.mark.parametrize(
    "changed",
    [
        {"pixels": 0}, {"logits": 0}, {"pixels": ["N", 3, "H", "W"]}, {"pixels": ["N", "H", 3]},
        {"logits": ["N", 3, "H", "W"]}, {"logits": [2]}, {"type": "tensor(float)"},
    ],
)  # fmt: skip
def test_an_export_takes_and_gives_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, Any]
) -> None:
    assert open_session(monkeypatch, tmp_path, Session(json.dumps(FACTS))).backend.stride == 16
    with pytest.raises(UserError, match=r"a\.onnx: (pixels|logits): "):
        open_session(monkeypatch, tmp_path, Session(json.dumps(FACTS), **changed))


@pytest.mark.parametrize("found", [RuntimeError("Add node"), np.zeros((1, 2, 9, 9), np.float32)])
def test_an_export_that_can_t_be_run_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Any
) -> None:
    session = Session(json.dumps(FACTS), found=found)
    backend = open_session(monkeypatch, tmp_path, session).backend
    with pytest.raises(UserError, match=r"a\.onnx: can't be run on 32x32 pixels"):
        backend(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))


def test_an_export_that_runs_out_of_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The batch is halved for that."""
    reason = f"[ONNXRuntimeError] : 6 : {'x' * 200} Failed to allocate memory for requested buffer"
    session = Session(json.dumps(FACTS), found=Exception(reason))
    backend = open_session(monkeypatch, tmp_path, session).backend
    with pytest.raises(torch.OutOfMemoryError, match="requested buffer"):
        backend(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))


def test_networks_on_the_device_and_on_the_host_are_an_ensemble() -> None:
    """A checkpoint on a GPU and an ONNX file; torch's device without values stands for the GPU."""
    device = torch.device("meta")
    onnx = object.__new__(OnnxBackend)
    logits = np.zeros((1, 2, 40, 56), np.float32)
    onnx.run, onnx.device = lambda pixels: logits, device
    onnx.facts = SimpleNamespace(labels=Labels((0, 255)))  # type: ignore[assignment]
    with torch.device("meta"):
        network = UNet(3, 2, width=2)
    networks = [onnx, TorchBackend(network, PIXELS, device)]
    mean = mean_logits(networks, torch.from_numpy(noise(40, 56))[None], "flips")
    assert mean.device == device and mean.shape == (1, 2, 40, 56)


def test_onnxruntime_is_asked_for_providers_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def session(path: str, options: object, providers: list[str]) -> object:
        asked.append(providers)
        raise ValueError("enough")

    for available in (["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]):
        runtime = SimpleNamespace(
            SessionOptions=SimpleNamespace,
            InferenceSession=session,
            get_available_providers=lambda available=available: available,
            disable_telemetry_events=lambda: None,
        )
        monkeypatch.setattr(module, "import_extra", lambda *_, found=runtime: found)
        for name in ("cuda", "cpu"):
            with pytest.raises(UserError, match="no ONNX file"):
                OnnxBackend(Path("a.onnx"), torch.device(name))
    cpu, gpu = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert asked == [cpu, cpu, gpu, cpu]


@pytest.mark.parametrize(
    ("listed", "installed", "chosen"),
    [
        (["openvino", "onnxruntime"], ["onnxruntime", "openvino"], "openvino"),
        (["openvino", "onnxruntime"], ["onnxruntime"], "onnxruntime"),
        (["onnxruntime"], ["onnxruntime", "openvino"], "onnxruntime"),
        (["openvino"], ["onnxruntime"], "onnxruntime"),
    ],
)
def test_the_fastest_runtime_that_passed_is_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: list[str], installed: list[str],
    chosen: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("unet_ddp.extras.onnx.backend.list_installed", lambda: installed)
    monkeypatch.setattr("unet_ddp.extras.onnx.backend.open_run", lambda *_: None)
    model = open_session(monkeypatch, tmp_path, Session(json.dumps({**FACTS, "runtimes": listed})))
    assert model.backend.runtime == chosen
    (note,) = model.notes
    assert note.startswith("run by " if chosen in listed else "warning: run by ") and chosen in note


def test_a_runtime_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("unet_ddp.extras.onnx.backend.open_run", lambda *_: None)
    open_session(monkeypatch, tmp_path, Session(json.dumps(FACTS)))
    model = open_model(tmp_path / "a.onnx", CPU, runtime="openvino")
    assert model.notes == [
        "warning: run by openvino, where its masks were not compared with its checkpoint's; that "
        "was in onnxruntime"
    ]
    with pytest.raises(UserError, match="--runtime tensorrt: must be one of onnxruntime, openvino"):
        open_model(tmp_path / "a.onnx", CPU, runtime="tensorrt")
    with pytest.raises(UserError, match=r"--runtime openvino: is for exported .*a\.pt"):
        open_model(tmp_path / "a.pt", CPU, runtime="openvino")


def test_a_file_for_other_programs_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"a\.onnx: its --whole form is for other programs"):
        open_session(monkeypatch, tmp_path, Session(json.dumps({**FACTS, "form": "--whole"})))
