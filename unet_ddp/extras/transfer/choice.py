"""An encoder with ImageNet weights, where it suits a data set and the settings name no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unet_ddp.config import TrainConfig
from unet_ddp.data.masks import Size
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.splits import Split
from unet_ddp.extras.transfer.pretrained import find_packaged
from unet_ddp.network.architecture import full_name
from unet_ddp.settings import as_flag

FEW_IMAGES = 1000  # images to train on; on 64 to 367 of cars, streets and nuclei, ImageNet weights were better
_SMALLEST = 64  # pixels: a side has two at the end of the encoder
_ENCODER = "efficientnet-lite0"
_NETWORK: dict[str, Any] = {
    "encoder": _ENCODER,
    "encoder_weights": "imagenet",
    "encoder_rate": 0.3,
    "learning_rate": 0.003,
}  # as the recipes for cars and nuclei
# Which network to train, or from which weights: with one of them there is nothing to choose.
_NAMING = {
    *("model", "encoder", "encoder_weights", "encoder_rate", "freeze", "load"),
    *("width", "bilinear", "checkpointing"),
}


@dataclass(frozen=True)
class Choice:
    """Settings of an encoder with ImageNet weights, for so few images."""

    values: dict[str, Any]
    count: int
    """Images to train on."""

    @property
    def flags(self) -> str:
        """The settings as flags."""
        return " ".join(f"{as_flag(name)} {value}" for name, value in self.values.items())

    @property
    def is_installed(self) -> bool:
        """True if the package of the weights is installed."""
        return find_packaged(full_name(_ENCODER)) is not None


def choose_encoder(
    config: TrainConfig, split: Split, images: ImageFormat, smallest: Size
) -> Choice | None:
    """Return settings of an encoder with ImageNet weights; None if they do not suit the images, or are named.

    They suit few images of 8 bit, in grey or colour. `smallest` is the size (height, width) of the
    smallest image, after scaling.
    """
    count, sides = len(split.training), config.data.crop_size or smallest
    is_usual = images.dtype == "uint8" and images.channels in (1, 3)
    if not is_usual or count >= FEW_IMAGES or min(sides) < _SMALLEST:
        return None
    if not config.given.isdisjoint(_NAMING):
        return None
    values = {name: value for name, value in _NETWORK.items() if name not in config.given}
    return Choice(values, count)
