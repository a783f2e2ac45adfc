"""The classic U-Net, with the widely used Carvana U-Net's parameter names.

Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation" (2015), with padded convolutions and batch norm: ``inc``, ``down1`` … ``down4``,
``up1`` … ``up4``, ``outc`` are that network's names, so that its checkpoints load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

SMALLEST_SIDE = 16  # halved four times, it leaves a pixel


class DoubleConv(nn.Sequential):
    """A 3x3 convolution, batch norm and ReLU, twice: (N, in, H, W) to (N, out, H, W)."""

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


class Down(nn.Sequential):
    """Max pooling that halves the size, and two convolutions: (N, in, H, W) to (N, out, H // 2, W // 2)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))


class Up(nn.Module):
    """Upsample, concatenate the skip connection, apply two convolutions."""

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
        """Return (N, out, H, W) of `deep` from the level below and `skip` (N, in / 2, H, W)."""
        upsampled = self.up(deep)  # (N, in / 2, H or H - 1, W or W - 1): pooling drops odd pixels
        rows, columns = skip.shape[2] - upsampled.shape[2], skip.shape[3] - upsampled.shape[3]
        # Exported, the network is for any size, whatever the example's needs: always pad.
        if torch.compiler.is_exporting() or rows or columns:
            left, top = columns // 2, rows // 2
            upsampled = F.pad(upsampled, (left, columns - left, top, rows - top))
        features = torch.cat([skip, upsampled], dim=1)  # (N, in, H, W)
        del upsampled
        # Layer by layer: `self.conv(features)` would keep its input, twice as large as anything
        # else, until it returns, and prediction's windows would take a third more memory.
        for layer in self.conv.double_conv:
            features = layer(features)
        return features


class OutConv(nn.Sequential):
    """One logit per class for each pixel: (N, in, H, W) to (N, num_classes, H, W)."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_classes, 1)


class UNet(nn.Module):
    """The classic U-Net for images of any size.

    Args:
        channels: channels of the images.
        num_classes: logits per pixel.
        width: channels of the first level, doubled four times on the way down; the paper's
            network has 64 (31 million parameters), 32 has a quarter of its parameters and cost.
        bilinear: upsample bilinearly instead of by transposed convolutions.
        checkpointing: in training, keep only the levels' outputs and compute what is between
            a second time in the backward pass: about a third more time for far less memory.
    """

    stride = SMALLEST_SIDE

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
        self.bytes_per_pixel = 4 * 6 * width  # at its widest point
        w = width
        factor = 2 if bilinear else 1
        self.inc = DoubleConv(channels, w)
        self.down1 = Down(w, 2 * w)
        self.down2 = Down(2 * w, 4 * w)
        self.down3 = Down(4 * w, 8 * w)
        self.down4 = Down(8 * w, 16 * w // factor)
        self.up1 = Up(16 * w, 8 * w // factor, bilinear=bilinear)
        self.up2 = Up(8 * w, 4 * w // factor, bilinear=bilinear)
        self.up3 = Up(4 * w, 2 * w // factor, bilinear=bilinear)
        self.up4 = Up(2 * w, w, bilinear=bilinear)
        self.outc = OutConv(w, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of `images` (N, channels, H, W)."""
        height, width = images.shape[-2:]
        rows = cast(int, torch.sym_max(0, SMALLEST_SIDE - height))
        columns = cast(int, torch.sym_max(0, SMALLEST_SIDE - width))
        if torch.compiler.is_exporting() or rows or columns:
            images = F.pad(images, (0, columns, 0, rows))
        # Channels with transposed convolutions; bilinear, down4 to up3 give half of them.
        x1 = self._level(self.inc, images)  # (N, w, H, W)
        x2 = self._level(self.down1, x1)  # (N, 2w, H/2, W/2)
        x3 = self._level(self.down2, x2)  # (N, 4w, H/4, W/4)
        x4 = self._level(self.down3, x3)  # (N, 8w, H/8, W/8)
        features = self._level(self.down4, x4)  # (N, 16w, H/16, W/16)
        features = self._level(self.up1, features, x4)  # (N, 8w, H/8, W/8)
        features = self._level(self.up2, features, x3)  # (N, 4w, H/4, W/4)
        features = self._level(self.up3, features, x2)  # (N, 2w, H/2, W/2)
        features = self._level(self.up4, features, x1)  # (N, w, H, W)
        logits: Tensor = self.outc(features)  # (N, num_classes, H, W)
        return logits[..., :height, :width]

    def _level(self, level: nn.Module, *inputs: Tensor) -> Tensor:
        if self.checkpointing and self.training:
            contexts = nullcontext(), _frozen_statistics(level)  # of the first and the second pass
            out = checkpoint(level, *inputs, use_reentrant=False, context_fn=lambda: contexts)
        else:
            out = level(*inputs)
        return cast(Tensor, out)


@contextmanager
def _frozen_statistics(level: nn.Module) -> Iterator[None]:
    """Leave batch norm's running statistics as the first forward pass left them."""
    before = {}
    for module in level.modules():
        if isinstance(module, _BatchNorm):
            before[module] = module.momentum, module.num_batches_tracked
            # It insists on a counter: one to throw away.
            module.momentum, module.num_batches_tracked = 0.0, torch.zeros(())
    try:
        yield
    finally:  # torch leaves by an exception as soon as it has what it needs
        for norm, (momentum, counter) in before.items():
            norm.momentum, norm.num_batches_tracked = momentum, counter
