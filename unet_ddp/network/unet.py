"""The classic U-Net, with the widely used Carvana U-Net's parameter names.

Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation" (2015), with padded convolutions and batch norm: ``inc``, ``down1`` … ``down4``,
``up1`` … ``up4``, ``outc`` are that network's names, so that its checkpoints load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SMALLEST_SIDE = 16  # four halvings must leave a pixel


class DoubleConv(nn.Module):
    """Twice: 3x3 convolution, batch norm, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, middle: int | None = None) -> None:
        super().__init__()
        middle = middle or out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, middle, 3, padding=1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H, W)."""
        out: Tensor = self.double_conv(features)
        return out


class Down(nn.Module):
    """Half the size, then twice a convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))

    def forward(self, features: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H // 2, W // 2)."""
        out: Tensor = self.maxpool_conv(features)
        return out


class Up(nn.Module):
    """Twice the size, joined with what the way down had there, then twice a convolution."""

    up: nn.Module

    def __init__(self, in_channels: int, out_channels: int, *, bilinear: bool) -> None:
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
        else:
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, 2, stride=2)
            self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, deep: Tensor, skip: Tensor) -> Tensor:
        """`deep` from below and `skip` (N, in / 2, H, W) from across to (N, out, H, W).

        Halving an odd side drops a pixel: zeros take its place, so that any size comes
        through at its own size.
        """
        grown = self.up(deep)
        rows, columns = skip.shape[2] - grown.shape[2], skip.shape[3] - grown.shape[3]
        # Exported, it is for any size: then zero or more pixels are put in, whatever there is now.
        if torch.compiler.is_exporting() or rows or columns:
            left, top = columns // 2, rows // 2
            grown = F.pad(grown, (left, columns - left, top, rows - top))
        features = torch.cat([skip, grown], dim=1)
        del grown
        # One by one: `self.conv(features)` would hold its input, twice as large as anything else,
        # to its end, and prediction's windows take a third more memory.
        for layer in self.conv.double_conv:
            features = layer(features)
        return features


class OutConv(nn.Module):
    """Features to one logit per class, pixel by pixel."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_classes, 1)

    def forward(self, features: Tensor) -> Tensor:
        """(N, in, H, W) to (N, num_classes, H, W)."""
        out: Tensor = self.conv(features)
        return out


class UNet(nn.Module):
    """The classic U-Net for images of any size.

    Args:
        channels: of the images.
        num_classes: logits per pixel.
        width: channels of the first level, doubled four times on the way down; the paper's
            network has 64 (31 million parameters), 32 has a quarter of its parameters and cost.
        bilinear: bilinear upsampling in place of transposed convolutions.
        checkpointing: in training, keep only the levels' outputs and compute what is between
            a second time in the backward pass: about a third more time for far less memory.
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        width: int = 32,
        bilinear: bool = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        w, half = width, 2 if bilinear else 1
        self.inc = DoubleConv(channels, w)
        self.down1 = Down(w, 2 * w)
        self.down2 = Down(2 * w, 4 * w)
        self.down3 = Down(4 * w, 8 * w)
        self.down4 = Down(8 * w, 16 * w // half)
        self.up1 = Up(16 * w, 8 * w // half, bilinear=bilinear)
        self.up2 = Up(8 * w, 4 * w // half, bilinear=bilinear)
        self.up3 = Up(4 * w, 2 * w // half, bilinear=bilinear)
        self.up4 = Up(2 * w, w, bilinear=bilinear)
        self.outc = OutConv(w, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, H, W) to logits (N, num_classes, H, W)."""
        height, width = images.shape[-2:]
        exporting = (
            torch.compiler.is_exporting()
        )  # for any size: the pads are a matter of the input
        lack = [torch.sym_max(0, SMALLEST_SIDE - side) for side in (height, width)]
        short = cast("list[int]", lack)
        if exporting or any(short):
            images = F.pad(images, (0, short[1], 0, short[0]))
        x1 = self._level(self.inc, images)
        x2 = self._level(self.down1, x1)
        x3 = self._level(self.down2, x2)
        x4 = self._level(self.down3, x3)
        x5 = self._level(self.down4, x4)
        features = self._level(self.up1, x5, x4)
        features = self._level(self.up2, features, x3)
        features = self._level(self.up3, features, x2)
        features = self._level(self.up4, features, x1)
        logits: Tensor = self.outc(features)
        return logits[..., :height, :width]

    def _level(self, level: nn.Module, *inputs: Tensor) -> Tensor:
        if not (self.checkpointing and self.training):
            out: Tensor = level(*inputs)
            return out
        contexts = partial(_once, level)
        out = checkpoint(level, *inputs, use_reentrant=False, context_fn=contexts)
        return out


def _once(level: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for a level's first and second computation: batch norm counts the first alone."""
    return nullcontext(), _statistics_as_they_are(level)


@contextmanager
def _statistics_as_they_are(level: nn.Module) -> Iterator[None]:
    norms = [module for module in level.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta, counts = [n.momentum for n in norms], [n.num_batches_tracked for n in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:  # torch leaves by an exception once it has what it needs
        for norm, momentum, count in zip(norms, momenta, counts, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
