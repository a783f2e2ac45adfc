"""The mask of each image, in the training masks' own values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers.base import Place
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles, Output
from unet_ddp.prediction.outputs.png import PROGRAM, write_png
from unet_ddp.prediction.prediction import Prediction

_TILE = 256
_PIXELS = 1 << 18  # of a band: they fit into a core's cache


class MaskFile(Output):
    """A PNG or TIFF; a TIFF of an image on a map gets its place, and a value where it has no data."""

    turn: ClassVar[int] = 1

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return the mask's name."""
        return [image.mask]

    @contextmanager
    def watch(self, image: ImageFiles, prediction: Prediction) -> Iterator[None]:
        """Mark pixels without data after all bands, before any output is written."""
        yield
        if image.mask.suffix.lower() != ".png" and image.source.place is not None:
            prediction.mark_nodata(image.source)

    def read(self, image: ImageFiles) -> Mask:
        """Return the mask of an earlier prediction."""
        return self.labels.from_file(read_mask(image.mask), image.mask)

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write the mask."""
        write_mask(prediction.mask, self.labels, image.mask, image.source.place, image.mark)


def write_mask(
    mask: Mask, labels: Labels, path: Path, place: Place | None = None, mark: str = ""
) -> None:
    """Write class ids (H, W) in the training masks' own values, or numbers, as PNG or TIFF.

    A TIFF gets the `place` of its image. A `mark` of the network becomes a part of the name of the software.

    Raises:
        UserError: it can't be written, or has too large values for a PNG.
    """
    is_png = path.suffix.lower() == ".png"
    if is_png and mask.dtype.itemsize > 2:
        raise UserError(
            f"{path}: values up to {mask.max()}; a PNG has at most 65535: use --mask-format tif"
        )
    with write_errors(path, ADVICE), replacing(path) as temporary:
        if is_png:
            _write_png(mask, labels, temporary, mark)
            return
        _write_tiff(mask, labels, temporary, mark, has_colours=place is not None)
        if place is not None:
            place.write_to(temporary, labels.nodata_tag)


def _write_png(ids: Mask, labels: Labels, path: Path, mark: str) -> None:
    """Write the pixels of `labels.to_image`."""
    sample = labels.to_image(ids[:1])
    pixels = np.asarray(sample)
    palette, depth = b"", 8 * pixels.dtype.itemsize
    if sample.mode == "P":
        palette = bytes(sample.getpalette() or [])
        depth = 1 if max(labels.values) <= 1 else 8
    step = max(1, _PIXELS // ids.shape[1])
    bands = (labels.to_values(ids[top : top + step]) for top in range(0, len(ids), step))
    with path.open("wb") as file:
        write_png(
            file, bands, (len(ids), *pixels.shape[1:]), depth=depth, palette=palette, mark=mark
        )


def _write_tiff(ids: Mask, labels: Labels, path: Path, mark: str, *, has_colours: bool) -> None:
    """Write the pixels of `labels.to_image` in tiles, so that the mask may exceed the memory.

    With `has_colours`, grey values of 8 bit have a colour table too.
    """
    import tifffile

    sample = labels.to_image(ids[:1])
    pixels = np.asarray(sample)
    photometric, colormap = "rgb" if pixels.ndim == 3 else "minisblack", None
    if sample.mode == "P" or (has_colours and sample.mode == "L"):
        photometric, colormap = "palette", np.zeros((3, 256), np.uint16)
        colormap[:, labels.values] = np.array(labels.colours, np.uint16).T * 257
    tifffile.imwrite(
        path,
        _tiles(ids, labels),
        shape=(*ids.shape, *pixels.shape[2:]),
        dtype=pixels.dtype,
        photometric=photometric,
        colormap=colormap,
        tile=(_TILE, _TILE),
        compression="zlib",
        buffersize=1 << 26,  # bytes of tiles at once; the default holds 512 MB
        metadata=None,
        software=f"{PROGRAM} {mark}" if mark else None,
    )


def _tiles(ids: Mask, labels: Labels) -> Iterator[NDArray[Any]]:
    """Yield the tiles row by row, padded to full size."""
    for top in range(0, len(ids), _TILE):
        band = labels.to_values(ids[top : top + _TILE])
        for left in range(0, band.shape[1], _TILE):
            tile = band[:, left : left + _TILE]
            height, width, *channels = tile.shape
            padded = np.zeros((_TILE, _TILE, *channels), tile.dtype)
            padded[:height, :width] = tile
            yield padded
