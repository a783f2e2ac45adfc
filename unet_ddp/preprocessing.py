"""From the uint8 pixels of a batch to what the network takes, on the network's device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

# Mean and spread of ImageNet's colours (torchvision's reference), which its weights expect
# and which suit photographs; other channels are centred plainly.
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the network's input: a property of the run, kept in its checkpoint."""

    channels: int
    max_value: int
    """Pixels are divided by it: 255 or 65535, from the data set and never from an image."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    """Images are reduced to this fraction of their size."""

    @classmethod
    def for_images(cls, channels: int, max_value: int, *, scale: float) -> Preprocessing:
        """The usual normalisation for images of that many channels."""
        mean, std = (
            (_IMAGENET_MEAN, _IMAGENET_STD)
            if channels == 3
            else ((0.5,) * channels, (0.25,) * channels)
        )
        return cls(channels, max_value, mean, std, scale)

    def __call__(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(N, H, W, C) integers to (N, C, H, W) `dtype` in channels_last order, normalised."""
        mean, factor = _constants(self, dtype, images.device)
        pixels = images.permute(0, 3, 1, 2).to(dtype)  # a view: the bytes lie as they came
        return pixels.sub_(mean).mul_(factor)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "channels": self.channels,
            "max_value": self.max_value,
            "mean": list(self.mean),
            "std": list(self.std),
            "scale": self.scale,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Preprocessing:
        """The preprocessing that `to_plain` gave."""
        return cls(
            int(plain["channels"]),
            int(plain["max_value"]),
            tuple(map(float, plain["mean"])),
            tuple(map(float, plain["std"])),
            float(plain["scale"]),
        )


@lru_cache(maxsize=8)
def _constants(
    preprocessing: Preprocessing, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and factor (1, C, 1, 1) in pixel values; copied to the device once, not each step."""
    mean = torch.tensor(preprocessing.mean, dtype=torch.float64) * preprocessing.max_value
    std = torch.tensor(preprocessing.std, dtype=torch.float64) * preprocessing.max_value
    shape = (1, -1, 1, 1)
    return mean.to(device, dtype).view(shape), (1 / std).to(device, dtype).view(shape)
