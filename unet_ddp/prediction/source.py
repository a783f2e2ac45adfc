"""Images opened for prediction: at the network's scale, in memory or read in bands."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.formats.header import TIFFS, ImageFormat, Pixels, TooLargeError
from unet_ddp.data.formats.maps import INSTALL, ground_scale, is_readable, read_place
from unet_ddp.data.formats.read import read_header, read_image
from unet_ddp.data.formats.resize import resize_area, scaled_size
from unet_ddp.errors import UserError
from unet_ddp.prediction.streaming import ArrayReader, MapReader, RowReader, ScaledReader
from unet_ddp.storage import local_file

_STREAMED = 1 << 24  # pixels from which an image is read in bands where rasterio can


@dataclass(frozen=True)
class SourceImage:
    """An image at the network's scale."""

    reader: RowReader  # reads the scaled image
    size: tuple[int, int]  # (height, width) of the image itself
    path: Path | None = None  # None for an image that was passed as an array

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) of the scaled image."""
        return self.reader.height, self.reader.width

    def read(self) -> Pixels:
        """Return all of the scaled image (H, W, C), and close its file."""
        with closing(self.reader):
            return self.reader.read(0, self.reader.height)

    def read_reduced(self, longest: int) -> Pixels:
        """Return all of it (H, W, C), its longer side at most `longest` pixels; close its file."""
        size = scaled_size(*self.input_size, min(1.0, longest / max(self.input_size)))
        return SourceImage(ScaledReader(self.reader, size), self.size).read()


def open_image(path: Path, wanted: ImageFormat, scale: float) -> SourceImage:
    """Open the image at `path`, scaled; rasterio reads a large one when its rows are asked for.

    On a map, the scale is that for its ground resolution, and its own no-data value counts.
    """
    with local_file(path) as file:
        place = read_place(file)
        if wanted.ground_resolution is not None:
            own = place and place.resolution
            scale = ground_scale(path, own, scale, wanted.ground_resolution)
        if place is not None and place.nodata is not None:
            wanted = replace(wanted, nodata=place.nodata)
        rows = MapReader.open(file, wanted, at_least=_STREAMED)
        if rows is not None:
            rows.path = path  # for messages; an object's copy stays open without a name
            size = rows.height, rows.width
            return SourceImage(ScaledReader(rows, scaled_size(*size, scale)), size, path)
        try:
            header = read_header(file)
            pixels = read_image(file, wanted, scale=scale)
        except TooLargeError as error:
            if path.suffix.lower() not in TIFFS or is_readable(path):
                raise
            raise UserError(f"{error}, or read it in windows: {INSTALL}") from None
    return SourceImage(ArrayReader(pixels), (header.height, header.width), path)


def open_array(
    image: Image.Image | NDArray[np.generic], wanted: ImageFormat, scale: float
) -> SourceImage:
    """Scale a Pillow image or an array (H, W) or (H, W, C)."""
    if isinstance(image, Image.Image):
        is_deep = image.mode.startswith(("I", "F"))
        mode = "L" if wanted.channels == 1 else "RGB"
        image = np.asarray(image if is_deep else image.convert(mode))
        image = image.astype(wanted.dtype) if is_deep else image
    pixels = image if image.ndim == 3 else image[..., None]
    if pixels.shape[2] == 1 and wanted.channels == 3:
        pixels = np.repeat(pixels, 3, axis=2)
    if pixels.ndim != 3 or pixels.shape[2] != wanted.channels or pixels.dtype != wanted.dtype:
        raise UserError(
            f"an array of shape {image.shape} and type {image.dtype}: the network takes "
            f"(H, W, {wanted.channels}) of {wanted.dtype}"
        )
    size = pixels.shape[0], pixels.shape[1]
    scaled = resize_area(cast(Pixels, pixels), scaled_size(*size, scale))
    return SourceImage(ArrayReader(scaled), size)
