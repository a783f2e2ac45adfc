"""Small networks whose predictions are lively, and images for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.network.architecture import Architecture, build_network, choose_architecture
from unet_ddp.prediction.backends import LoadedModel, TorchBackend
from unet_ddp.prediction.predictor import Predictor

CPU = torch.device("cpu")


class Backend:
    """A backend that is a function."""

    input_device, stride, bytes_per_pixel = CPU, 16, 48

    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.run = run

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.run(pixels)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([9, seed]).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_photo(path: Path, size: tuple[int, int] = (41, 67)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(*size, seed=len(path.name))).save(path)
    return path


def lively_network(
    model: str = "unet", encoder: str | None = None, classes: int = 2, width: int = 2
) -> Any:
    """Weights and statistics such that every part of the network matters."""
    torch.manual_seed(4)
    architecture = choose_architecture(model, encoder, channels=3, num_classes=classes, width=width)
    network: Any = build_network(architecture).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.05, 0.5)
            module.weight.data.uniform_(0.5, 1.5)
    if encoder is None:  # no class has it all
        with torch.no_grad():
            images = Preprocessing.for_images(3, scale=1)(torch.from_numpy(noise(64, 64))[None])
            network.outc.conv.bias -= network(images).flatten(2).median(2).values[0]
    return network


def load(network: Any, labels: Labels, *, scale: float = 1.0, **facts: Any) -> LoadedModel:
    pixels = Preprocessing.for_images(3, scale=scale)
    backend = TorchBackend(network, pixels, CPU)
    return LoadedModel(backend, labels, pixels, facts.get("threshold"), facts.get("notes", []))


def make_predictor(*, scale: float = 1.0, classes: int = 2, **options: Any) -> Predictor:
    labels = Labels(tuple(range(classes)))
    model = load(lively_network(classes=classes), labels, scale=scale)
    return Predictor([model], device=CPU, **options)


def write_model(
    path: Path,
    labels: Labels,
    *,
    channels: int = 3,
    max_value: int = 255,
    scale: float = 0.5,
    threshold: float | None = None,
    seed: int = 3,
    config: dict[str, Any] | None = None,
    model: str = "unet",
    encoder: str | None = None,
) -> None:
    """Write a checkpoint of an untrained network that predicts every class somewhere."""
    torch.manual_seed(seed)
    architecture = Architecture(model, channels, labels.num_classes, encoder, 4)
    network: Any = build_network(architecture).eval()
    last = network.outc.conv if encoder is None else network.segmentation_head[0]
    with torch.no_grad():
        logits = network(torch.randn(1, channels, 64, 64))
        last.bias -= logits.flatten(2).median(2).values[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "model": network.state_dict(),
        "architecture": architecture.to_dict(),
        "labels": labels.to_dict(),
        "preprocessing": Preprocessing.for_images(channels, max_value, scale=scale).to_dict(),
        "threshold": threshold,
        "config": config,
    }
    checkpoint.save(path, content)
