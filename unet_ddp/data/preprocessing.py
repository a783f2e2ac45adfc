"""From the uint8 pixels of a batch to what the network takes, on the network's device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from unet_ddp.data.formats.header import ImageFormat

# Mean and spread of ImageNet's colours (torchvision's reference), which its weights expect
# and which suit photographs; other channels are centred plainly.
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class PixelRange:
    """Range and spread of the training images' pixels, in shares of the range."""

    low: float
    high: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the network's input: a property of the run, kept in its checkpoint.

    A pixel becomes ((pixel - low) / (high - low) - mean) / std, by numbers of the data set and
    never of an image.
    """

    channels: int
    mean: tuple[float, ...]
    """Of each channel, as a share of the range."""
    std: tuple[float, ...]
    scale: float
    """Images are reduced to this fraction of their size."""
    dtype: str = "uint8"
    """Type of the pixels: uint8, uint16, int16 or float32."""
    low: float = 0.0
    high: float = 255.0
    """The range: of the type for 8 bit, else what the training images have."""
    nodata: float | None = None
    """The value of pixels that hold nothing."""

    @classmethod
    def for_images(cls, channels: int, max_value: float = 255, *, scale: float) -> Preprocessing:
        """The usual normalisation for images of that many channels from 0 to `max_value`."""
        mean, std = (
            (_IMAGENET_MEAN, _IMAGENET_STD)
            if channels == 3
            else ((0.5,) * channels, (0.25,) * channels)
        )
        dtype = "uint8" if max_value == 255 else "uint16"
        return cls(channels, mean, std, scale, dtype, high=float(max_value))

    @classmethod
    def for_data(
        cls, form: ImageFormat, measured: PixelRange | None, *, scale: float
    ) -> Preprocessing:
        """The normalisation for a data set: as measured, or the usual one for 8 bit."""
        if measured is None:
            usual = cls.for_images(
                form.channels, 255 if form.dtype == "uint8" else 65535, scale=scale
            )
            return replace(usual, nodata=form.nodata)
        return cls(
            form.channels,
            measured.mean,
            measured.std,
            scale,
            form.dtype,
            measured.low,
            measured.high,
            form.nodata,
        )

    @property
    def format(self) -> ImageFormat:
        """What images must be like."""
        return ImageFormat(self.channels, self.dtype, self.nodata, self.fill)

    @property
    def fill(self) -> tuple[float, ...]:
        """What pixels that hold nothing are given: the mean, so that the network sees zero."""
        return tuple(self.low + (self.high - self.low) * mean for mean in self.mean)

    def __call__(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(N, H, W, C) pixels to (N, C, H, W) `dtype` in channels_last order, normalised."""
        mean, factor = _constants(self, dtype, images.device)
        pixels = images.permute(0, 3, 1, 2)  # a view: the bytes lie as they came
        pixels = pixels.to(dtype, copy=True)
        return pixels.sub_(mean).mul_(factor)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        plain = asdict(self)
        return plain | {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Preprocessing:
        """The preprocessing that `to_dict` gave."""
        known = {item.name: plain[item.name] for item in fields(cls) if item.name in plain}
        if "max_value" in plain:  # as version 0.1 had it
            deep = plain["max_value"] > 255
            known |= {"high": float(plain["max_value"]), "dtype": "uint16" if deep else "uint8"}
        known |= {name: tuple(map(float, plain[name])) for name in ("mean", "std")}
        return cls(**known)


@lru_cache(maxsize=8)
def _constants(
    preprocessing: Preprocessing, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and factor (1, C, 1, 1) in pixel values; copied to the device once, not each step."""
    extent = (preprocessing.high - preprocessing.low) or 1.0
    mean = torch.tensor(preprocessing.fill, dtype=torch.float64)
    std = torch.tensor(preprocessing.std, dtype=torch.float64) * extent
    shape = (1, -1, 1, 1)
    return mean.to(device, dtype).view(shape), (1 / std).to(device, dtype).view(shape)
