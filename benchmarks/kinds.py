"""Kinds of training that benchmarks.settings compares: optimizers, schedules and networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from unet_ddp.config import OptimizationConfig
from unet_ddp.network.unet import DoubleConv, Down, OutConv, UNet, Up
from unet_ddp.training.optimizer import AdamW
from unet_ddp.training.state import Schedule

DECAY = OptimizationConfig().weight_decay


class LeveledUNet(nn.Module):
    """The classic U-Net with `depth` levels down, where it has four."""

    def __init__(self, channels: int, num_classes: int, *, width: int, depth: int) -> None:
        super().__init__()
        sizes = [width * 2**k for k in range(depth)]
        self.inc = DoubleConv(channels, width)
        self.down = nn.ModuleList(Down(size, 2 * size) for size in sizes)
        self.up = nn.ModuleList(Up(2 * size, size, bilinear=False) for size in reversed(sizes))
        self.outc = OutConv(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        levels = [self.inc(images)]
        for down in self.down:
            levels.append(down(levels[-1]))
        features = levels.pop()
        for up in self.up:
            features = up(features, levels.pop())
        return self.outc(features)


class _Conv(nn.Sequential):
    """A convolution, batch norm and PReLU; `shape` is the kernel's."""

    def __init__(self, inputs: int, outputs: int, shape: tuple[int, int], **options: int) -> None:
        dilation = options.pop("dilation", 1)
        options["padding"] = [dilation * (side // 2) for side in shape]
        conv = nn.Conv2d(inputs, outputs, shape, dilation=dilation, bias=False, **options)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.PReLU(outputs))


class _Block(nn.Module):
    """Depthwise asymmetric bottleneck: a 3x1 and a 1x3 convolution, and the same two dilated."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        half = channels // 2
        self.before = nn.Sequential(nn.BatchNorm2d(channels), nn.PReLU(channels))
        self.reduce = _Conv(channels, half, (3, 3))
        self.near, self.far = (
            nn.Sequential(
                _Conv(half, half, (3, 1), groups=half, dilation=d),
                _Conv(half, half, (1, 3), groups=half, dilation=d),
            )
            for d in (1, dilation)
        )
        self.after = nn.Sequential(nn.BatchNorm2d(half), nn.PReLU(half))
        self.expand = nn.Conv2d(half, channels, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        reduced = self.reduce(self.before(features))
        return features + self.expand(self.after(self.near(reduced) + self.far(reduced)))


class DABNet(nn.Module):
    """Li and Kim, "DABNet" (2019): 0.76 million parameters, logits of an eighth of the size."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        c = channels
        self.inc = nn.Sequential(
            _Conv(c, 32, (3, 3), stride=2), _Conv(32, 32, (3, 3)), _Conv(32, 32, (3, 3))
        )
        self.down = nn.ModuleList(
            _Conv(inputs + c, outputs, (3, 3), stride=2)
            for inputs, outputs in ((32, 64), (128, 128))
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(*(_Block(size, dilation) for dilation in dilations))
            for size, dilations in ((64, (2, 2, 2)), (128, (4, 4, 8, 8, 16, 16)))
        )
        self.outc = nn.Conv2d(256 + c, num_classes, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        small, features = F.avg_pool2d(images, 3, 2, 1), self.inc(images)  # (N, 32, H/2, W/2)
        for down, blocks in zip(self.down, self.blocks, strict=True):
            reduced = down(torch.cat([features, small], 1))
            small = F.avg_pool2d(small, 3, 2, 1)
            features = torch.cat([blocks(reduced), reduced], 1)  # (N, 128, H/4, W/4); 256, H/8
        logits = self.outc(torch.cat([features, small], 1))
        return F.interpolate(logits, images.shape[2:], mode="bilinear")


def alternate_flip(augmentation: Any) -> Callable[..., Any]:
    """Return an augmentation that mirrors an image in every second epoch, not at random."""
    augmentation = copy.deepcopy(augmentation)
    for transform in augmentation.compose.transforms:
        if type(transform).__name__ == "HorizontalFlip":
            transform.p = 0.0

    def change(image: Any, mask: Any, *, epoch: int, index: int, drawn: int | None) -> Any:
        if (epoch + index) % 2:
            image, mask = (np.ascontiguousarray(part[:, ::-1]) for part in (image, mask))
        return augmentation(image, mask, epoch=epoch, index=index, drawn=drawn)

    return change


def adamw(network: nn.Module, rate: float) -> Optimizer:
    return AdamW(network.parameters(), rate, weight_decay=DECAY, fused=True)


def muon(network: nn.Module, rate: float) -> Optimizer:
    """Return Muon for the convolutions but the last, with AdamW at 1e-3 for the rest."""
    from timm.optim import Muon

    named = list(network.named_parameters())
    taken = {name for name, weight in named if weight.ndim == 4 and not name.startswith("outc")}
    rest = [weight for name, weight in named if name not in taken]
    groups = [
        {"params": [weight for name, weight in named if name in taken], "nesterov": True},
        {"params": rest, "use_fallback": True, "lr_scale": 1e-3 / rate, "betas": (0.9, 0.999)},
    ]
    return Muon(groups, rate, weight_decay=DECAY)


def schedule_free(network: nn.Module, rate: float) -> Optimizer:
    from schedulefree import AdamWScheduleFree  # pip install schedulefree

    optimizer = AdamWScheduleFree(network.parameters(), rate, weight_decay=DECAY)
    optimizer.train()
    return optimizer


class Kind(NamedTuple):
    """What differs from train.py's defaults."""

    rates: tuple[float, ...] = (1e-3, 3e-3)
    network: Callable[..., nn.Module] = partial(UNet, width=8)
    optimizer: Callable[[nn.Module, float], Optimizer] = adamw
    warmup: float = Schedule.warmup
    lowest: float = Schedule.lowest
    cycles: bool = False  # beta1 falls from 0.95 to 0.85 while the rate rises, and rises again
    average: float = 0.0  # decay of the weights' average, at most (1 + t) / (10 + t)
    alternates: bool = False  # each image is mirrored in every second epoch, not at random
    half: float = 0.0  # share of the time, from the start, with images of half the size


KINDS = {
    "default": Kind(),
    "one-cycle": Kind(warmup=0.3, lowest=0.0, cycles=True),
    "average of the weights": Kind(average=0.99),
    "alternating flip": Kind(alternates=True),
    "half size in the first 30 %": Kind(half=0.3),
    "Muon": Kind((1e-2, 3e-2), optimizer=muon),
    "schedule-free": Kind(optimizer=schedule_free, lowest=1.0),
    "width 6, five levels down": Kind(network=partial(LeveledUNet, width=6, depth=5)),
    "width 11, three levels down": Kind(network=partial(LeveledUNet, width=11, depth=3)),
    "DABNet": Kind(network=DABNet),
}
