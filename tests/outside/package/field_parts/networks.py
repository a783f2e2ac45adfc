"""A network."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class Small(nn.Module):
    """Two convolutions, at half the size."""

    stride = 2

    def __init__(self, channels: int, num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.head = nn.ConvTranspose2d(width, num_classes, 2, 2)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes, H, W) of images (N, channels, H, W)."""
        return cast(Tensor, self.head(self.encoder(images)))
