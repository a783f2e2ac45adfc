"""A data set that was checked, as a run trains on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import PixelRange
from unet_ddp.data.readers.header import ImageFormat
from unet_ddp.data.samplers import Draw
from unet_ddp.data.splits import Split


@dataclass(frozen=True)
class PreparedData:
    """A data set, ready to train on."""

    split: Split
    labels: Labels
    format: ImageFormat
    crop_size: tuple[int, int] | None  # (height, width) to train on; None if all have one size
    smallest: tuple[int, int]  # (height, width) of the smallest image, after scaling
    notes: list[str]  # lines for the user, warnings included
    range: PixelRange | None = None  # of the training images; None for 8 bit, where it is known
    groups: dict[str, str] = field(default_factory=dict)  # group of each pair, by name
    one_size: tuple[int, int] | None = None  # (height, width) of all images; None if they differ
    draw: Draw | None = None  # of training images
    most_pixels: int = 0  # of the largest image, after scaling
