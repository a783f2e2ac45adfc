"""Each image with its mask over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unet_ddp.data.readers.resize import resize_nearest
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.source import open_image

LARGEST = 4096
"""Pixels; the longer side of a reduced overlay."""


class Overlay(Output):
    """A picture of each image with its mask, or the outlines of numbered objects, over it."""

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return the picture's name."""
        return [image.named("_overlay.png")]

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write the picture; one of more than 4096 pixels a side is reduced."""
        from unet_ddp.data.drawing import draw_mask, save_picture

        wanted, mask = replace(self.image_format, ground_resolution=None), prediction.mask
        opened = open_image(image.source, wanted, scale=1.0)
        pixels = opened.read_reduced(LARGEST)
        if pixels.shape[:2] != opened.size:
            mask = resize_nearest(mask, pixels.shape[:2])
        (path,) = self.files(image)
        with write_errors(path, ADVICE), replacing(path) as temporary:
            save_picture(draw_mask(pixels, self.labels.layer(mask), self.labels), temporary)
