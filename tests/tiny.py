"""A run in miniature: a network of a few weights, its state, its batches and its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from unet_ddp.config import OptimizationConfig
from unet_ddp.data.dataset import PreparedData, Sample
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.splits import Split
from unet_ddp.network.precision import Precision
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.state import Schedule, TrainState
from unet_ddp.training.tensors import WeightAverage

CPU = torch.device("cpu")
PIXELS = Preprocessing(3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), 1.0)


def make_network(*, dropout: float = 0.0, seed: int = 1) -> nn.Sequential:
    """A convolution, batch norm and a convolution to two classes, in float64."""
    torch.manual_seed(seed)
    convolution = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    parts = [convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*parts, nn.Conv2d(4, 2, 1)).double()


def make_state(
    network: nn.Module | None = None, *, ema: float = 0.0, steps: int = 4, **changed: Any
) -> TrainState:
    """The state of a run, `steps` steps in each of two epochs."""
    network = network or make_network()
    state = {
        "network": network,
        "replica": network,
        "optimizer": torch.optim.AdamW(network.parameters(), weight_decay=0.1, fused=True),
        "precision": Precision(CPU),
        "loss": SegmentationLoss(),
        "preprocess": PIXELS,
        "schedule": Schedule(1e-2, 2 * steps, warmup=0.5),
        "steps_per_epoch": steps,
        "average": WeightAverage(network, ema) if ema else None,
    }
    return TrainState(**{**state, **changed})


def make_loss(**settings: Any) -> SegmentationLoss:
    return SegmentationLoss(OptimizationConfig(**settings))


def make_batch(number: int, *, count: int = 2, height: int = 6, width: int = 5) -> Sample:
    """Random images of two classes; the same `number` gives the same batch."""
    random = torch.Generator().manual_seed(number)
    size = (count, height, width)
    images = torch.randint(0, 256, (*size, 3), generator=random, dtype=torch.uint8)
    masks = torch.randint(0, 2, size, generator=random, dtype=torch.uint8)
    return Sample(images, masks, torch.arange(count) + number * count)


def make_pairs(names: str, folder: Path = Path()) -> Pairs:
    return Pairs(Pair(name, folder / f"{name}.png", folder / f"{name}_mask.png") for name in names)


def make_data(training: str = "abcdef", validation: str = "xy", **changed: Any) -> PreparedData:
    """A data set of two classes whose files do not exist."""
    data = {
        "split": Split(make_pairs(training), make_pairs(validation), "by name"),
        "labels": Labels((0, 255)),
        "format": ImageFormat(3),
        "crop_size": None,
        "smallest": (32, 40),
        "notes": [],
    }
    return PreparedData(**{**data, **changed})
