"""Normalise a batch's pixels on the network's device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import torch
from torch import Tensor

from unet_ddp.data.readers.base import DTYPES, ImageFormat
from unet_ddp.errors import Limit, UserError, count_of, from_plain, shorten

# Mean and standard deviation of ImageNet's colours (torchvision's reference), which its weights
# expect and which suit photographs; other channels are centred.
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_Finite = Annotated[float, Limit(-1e38, 1e38)]
_Positive = Annotated[float, Limit(above=0, at_most=1e38)]


@dataclass(frozen=True)
class PixelRange:
    """Range of the training images' pixels; mean and deviation of each channel as shares of it."""

    low: float
    high: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Preprocessing:
    """Normalisation of pixels: a property of the run, saved in its checkpoint.

    A pixel becomes ((pixel - low) / (high - low) - mean) / std, by numbers of the data set and
    never of an image.
    """

    channels: int
    mean: tuple[_Finite, ...]  # of each channel, as a share of the range
    std: tuple[_Positive, ...]
    scale: Annotated[float, Limit(above=0, at_most=1)]  # images are reduced to this fraction
    dtype: Annotated[str, DTYPES] = "uint8"
    low: _Finite = 0.0  # the range: of the type for 8 bit, else of the training images
    high: _Finite = 255.0
    nodata: float | None = None  # the value of pixels without data
    ground_resolution: _Positive | None = None  # metres of a pixel at scale 1, where known

    def __post_init__(self) -> None:
        """Refuse numbers by which no pixel can be normalised."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise UserError(
                    f"{name}: {shorten(values)} for {count_of(self.channels, 'channel')}; expected one number each"
                )
        extent = (self.high - self.low) or 1.0
        if extent < 0 or any(not 1e-38 < std * extent < 1e38 for std in self.std):
            raise UserError(
                f"low: {self.low}, high: {self.high}, std: {shorten(self.std)}; expected a range with high "
                "above low, whose numbers 32 bits can hold"
            )

    @classmethod
    def for_images(cls, channels: int, max_value: float = 255, *, scale: float) -> Preprocessing:
        """Return the usual normalisation of images with values from 0 to `max_value`."""
        mean = _IMAGENET_MEAN if channels == 3 else (0.5,) * channels
        std = _IMAGENET_STD if channels == 3 else (0.25,) * channels
        dtype = "uint8" if max_value == 255 else "uint16"
        return cls(channels, mean, std, scale, dtype, high=float(max_value))

    @classmethod
    def for_data(
        cls, image_format: ImageFormat, measured: PixelRange | None, *, scale: float
    ) -> Preprocessing:
        """Return the normalisation for a data set: the measured one, or the usual if None."""
        channels = image_format.channels
        dtype = image_format.dtype
        if measured is None:
            found = cls.for_images(channels, 255 if dtype == "uint8" else 65535, scale=scale)
        else:
            low = measured.low
            found = cls(channels, measured.mean, measured.std, scale, dtype, low, measured.high)
        ground = image_format.ground_resolution
        return replace(found, dtype=dtype, nodata=image_format.nodata, ground_resolution=ground)

    @property
    def format(self) -> ImageFormat:
        """The format in which images are read."""
        return ImageFormat(
            self.channels, self.dtype, self.nodata, self.fill, self.ground_resolution
        )

    @property
    def fill(self) -> tuple[float, ...]:
        """The mean in pixel values; it replaces pixels without data, so that the network sees 0."""
        return tuple(self.low + (self.high - self.low) * mean for mean in self.mean)

    def __call__(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return pixels (N, H, W, C) normalised, as (N, C, H, W) `dtype` in channels_last order."""
        mean, factor = _constants(self, dtype, images.device)  # (1, C, 1, 1)
        pixels = images.permute(0, 3, 1, 2)  # (N, C, H, W), a view: the bytes stay where they are
        pixels = pixels.to(dtype, copy=True)
        return pixels.sub_(mean).mul_(factor)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self) | {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, plain: Any) -> Preprocessing:
        """Return the preprocessing in a checkpoint, checked."""
        return from_plain(cls, plain, is_open=True)


@lru_cache(maxsize=8)
def _constants(
    preprocessing: Preprocessing, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return mean and factor (1, C, 1, 1) in pixel values; copied to the device only once."""
    extent = (preprocessing.high - preprocessing.low) or 1.0
    mean = torch.tensor(preprocessing.fill, dtype=torch.float64)
    factor = 1 / (torch.tensor(preprocessing.std, dtype=torch.float64) * extent)
    shape = (1, -1, 1, 1)
    return mean.to(device, dtype).view(shape), factor.to(device, dtype).view(shape)
