"""Images opened for prediction: at the network's scale, in memory or read in bands."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.readers import bands, pillow
from unet_ddp.data.readers.base import ImageFormat, Pixels, Rows, TooLargeError
from unet_ddp.data.readers.read import Source, find_reader
from unet_ddp.data.readers.resize import fit_pixels, scaled_size
from unet_ddp.errors import UserError
from unet_ddp.prediction.streaming import ArrayReader, ScaledReader

_STREAMED = 1 << 24  # pixels from which an image is read in bands where its reader can


@dataclass(frozen=True)
class SourceImage:
    """An image at the network's scale."""

    reader: Rows  # reads the scaled image
    size: tuple[int, int]  # (height, width) of the image itself
    source: Source | None = None  # its file; None for an image that was passed as an array

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) of the scaled image."""
        return self.reader.height, self.reader.width

    def read(self) -> Pixels:
        """Return all of the scaled image (H, W, C)."""
        return self.reader.read(0, self.reader.height)

    def read_reduced(self, longest: int) -> Pixels:
        """Return all of it (H, W, C), its longer side at most `longest` pixels."""
        size = scaled_size(*self.input_size, min(1.0, longest / max(self.input_size)))
        return ScaledReader(self.reader, size).read(0, size[0])


def open_image(source: Source, wanted: ImageFormat, scale: float) -> SourceImage:
    """Open an image, scaled; a large one is read when its rows are asked for, where its reader can.

    On a map, the scale is that for its ground resolution, and its own no-data value counts.
    """
    try:
        with source.reading() as opened:
            scale, wanted = opened.find_scale(wanted, scale), opened.find_format(wanted)
        rows = source.rows(wanted, at_least=_STREAMED)
        if rows is not None:
            size = rows.height, rows.width
            return SourceImage(ScaledReader(rows, scaled_size(*size, scale)), size, source)
        size = source.header.size
        pixels, _ = source.image(wanted, scale=scale)
    except TooLargeError as error:
        missing = find_reader(source.path).missing()
        if not missing:
            raise
        raise UserError(f"{error}, or read it in windows: {missing}") from None
    return SourceImage(ArrayReader(pixels), size, source)


def open_array(
    image: Image.Image | NDArray[np.generic], wanted: ImageFormat, scale: float
) -> SourceImage:
    """Scale a Pillow image, or an array as one in an NPY file; what a file is refused for, they are."""
    if isinstance(image, Image.Image) and image.mode != "F":
        name = f"Pillow image {image.mode}"
        try:
            pixels = pillow.decode(image, wanted, name)
        except OSError as error:  # it was not read from its file before
            raise UserError(f"{name}: corrupt or truncated ({error}); replace it") from None
    else:
        values = np.asarray(image)
        name = f"array {values.shape}"
        pixels = bands.as_pixels(bands.as_bands(values, name), name)
    if not pixels.size:
        raise UserError(f"{name}: has no pixels")
    size = pixels.shape[0], pixels.shape[1]
    scaled, _ = fit_pixels(pixels, wanted, scaled_size(*size, scale), name)
    return SourceImage(ArrayReader(scaled), size)
