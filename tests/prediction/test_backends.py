"""Networks that are run: folded or as they were trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.prediction.models import CPU, lively_network, noise, write_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.network.unet import UNet
from unet_ddp.prediction import backends
from unet_ddp.prediction.backends import (
    OnnxBackend,
    TorchBackend,
    build_model,
    check_described,
    fold_batchnorm,
    import_extra,
    open_model,
)
from unet_ddp.prediction.tta import mean_logits
from unet_ddp.runs.weights import read_model

PIXELS = Preprocessing.for_images(3, scale=1.0)


def norms(network: torch.nn.Module) -> int:
    return sum(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize(("model", "encoder"), [("unet", None), ("unet", "resnet18")])
def test_folded_batch_norm_is_the_same_function(model: str, encoder: str | None) -> None:
    network = lively_network(model, encoder)
    before = norms(network)
    folded = fold_batchnorm(network)
    assert norms(network) == before > norms(folded)
    assert encoder or norms(folded) == 0
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected, found = network(images), folded(images)
    assert (expected - found).abs().max() < 1e-4 * max(1, float(expected.abs().max()))
    weight = next(p for p in folded.parameters() if p.ndim == 4 and p.shape[1] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_backend_is_the_network_after_its_preprocessing() -> None:
    network = lively_network().train()
    pixels = torch.from_numpy(noise(40, 56))[None]
    unfolded = TorchBackend(network, PIXELS, CPU, fold=False)
    assert not network.training
    with torch.no_grad():
        expected = network(PIXELS(pixels))
    assert torch.equal(unfolded(pixels), expected)
    found = TorchBackend(network, PIXELS, CPU)(pixels)
    assert found.shape == (1, 2, 40, 56) and found.is_inference()
    assert not torch.equal(found, expected) and (found - expected).abs().max() < 1e-4


def test_stride_and_memory_are_the_networks() -> None:
    classic = TorchBackend(lively_network(width=3), PIXELS, CPU)
    assert (classic.stride, classic.bytes_per_pixel) == (16, 4 * 6 * 3)
    encoder = TorchBackend(lively_network("fpn", "resnet18"), PIXELS, CPU)
    assert (encoder.stride, encoder.bytes_per_pixel) == (32, 1600)


def test_a_checkpoint_describes_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_model(path, Labels((0, 255)), threshold=0.3)
    model = open_model(path, CPU)
    assert (model.labels, model.threshold, model.notes) == (Labels((0, 255)), 0.3, [])
    assert model.preprocessing == Preprocessing.for_images(3, scale=0.5)
    pixels = torch.from_numpy(noise(32, 32))[None]
    saved = read_model(path)
    unfolded = open_model(path, CPU, fold=False).backend(pixels)
    assert torch.equal(build_model(saved, path, CPU, fold=False).backend(pixels), unfolded)
    assert torch.equal(build_model(saved, path, CPU).backend(pixels), model.backend(pixels))
    assert not torch.equal(model.backend(pixels), unfolded)
    with pytest.raises(UserError, match=r"--scale 0\.25"):
        open_model(path, CPU, scale=0.25)


@pytest.mark.parametrize("missing", ["architecture", "labels", "preprocessing"])
def test_a_model_that_does_not_describe_itself_is_an_error(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "a.pt"
    write_model(path, Labels((0, 255)))
    saved = read_model(path)
    assert check_described(saved, path) == (saved.architecture, saved.labels, saved.preprocessing)
    with pytest.raises(UserError, match=r"a\.pt: neither .* --load"):
        build_model(replace(saved, **{missing: None}), path, CPU)


def test_onnx_files_are_opened_by_their_suffix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.ONNX: not found"):
        open_model(tmp_path / "a.ONNX", CPU)


def test_a_missing_extra_is_named_with_the_command_to_type() -> None:
    assert import_extra("json", Path("a")).loads("1") == 1
    with pytest.raises(UserError, match=r"a\.onnx: needs no_such_package.* pip install 'unet-ddp"):
        import_extra("no_such_package", Path("a.onnx"))


def test_networks_on_the_device_and_on_the_host_are_an_ensemble() -> None:
    """A checkpoint on a GPU and an ONNX file; torch's device without values stands for the GPU."""
    device = torch.device("meta")
    onnx = object.__new__(OnnxBackend)
    logits = np.zeros((1, 2, 40, 56), np.float32)
    onnx.session, onnx.device = SimpleNamespace(run=lambda *args: [logits]), device
    with torch.device("meta"):
        network = UNet(3, 2, width=2)
    networks = [TorchBackend(network, PIXELS, device), onnx]
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
        monkeypatch.setattr(backends, "import_extra", lambda name, path, found=runtime: found)
        for name in ("cuda", "cpu"):
            with pytest.raises(UserError, match="no ONNX file"):
                OnnxBackend(Path("a.onnx"), torch.device(name))
    cpu, gpu = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert asked == [cpu, cpu, gpu, cpu]
