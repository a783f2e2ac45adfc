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
from unet_ddp.errors import UserError
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles, Output
from unet_ddp.prediction.outputs.png import Kind, write_png
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
        if self._find_place(image) is not None:
            prediction.mark_nodata(image.source)

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write the mask."""
        write_mask(prediction.mask, self.labels, image.mask, self._find_place(image))

    def _find_place(self, image: ImageFiles) -> Place | None:
        """Return the image's place if its mask is a TIFF, which gets it."""
        return None if _is_png(image.mask) else image.source.place


def write_mask(mask: Mask, labels: Labels, path: Path, place: Place | None = None) -> None:
    """Write class ids (H, W) in the training masks' own values, or numbers, as PNG or TIFF.

    A TIFF gets the `place` of its image.

    Raises:
        UserError: it can't be written, or has too large values for a PNG.
    """
    if _is_png(path) and mask.dtype.itemsize > 2:
        raise UserError(
            f"{path}: values up to {mask.max()}; a PNG has at most 65535: use --mask-format tif"
        )
    with write_errors(path, ADVICE), replacing(path) as temporary:
        if _is_png(path):
            _write_png(mask, labels, temporary)
            return
        _write_tiff(mask, labels, temporary, has_colours=place is not None)
        if place is not None:
            place.write_to(temporary, labels.nodata_tag)


def _is_png(path: Path) -> bool:
    return path.suffix.lower() == ".png"


def _bands(ids: Mask, height: int) -> Iterator[Mask]:
    """Yield `height` rows at a time, for what takes several times their memory."""
    for top in range(0, len(ids), height):
        yield ids[top : top + height]


def _write_png(ids: Mask, labels: Labels, path: Path) -> None:
    """Write the pixels of `labels.to_image`."""
    sample = labels.to_image(ids[:1])
    palette = bytes(sample.getpalette() or []) if sample.mode == "P" else None
    kind = Kind.of(np.asarray(sample), palette, largest=max(labels.values))
    height = max(1, _PIXELS // ids.shape[1])
    rows = map(labels.to_values, _bands(ids, height))
    with path.open("wb") as file:
        write_png(file, rows, (ids.shape[0], ids.shape[1]), kind)


def _write_tiff(ids: Mask, labels: Labels, path: Path, *, has_colours: bool) -> None:
    """Write the pixels of `labels.to_image` in tiles, so that the mask may exceed the memory.

    With `has_colours`, grey values of 8 bit have a colour table too.
    """
    import tifffile

    first = labels.to_image(ids[:1])
    sample = np.asarray(first)
    photometric, colormap = "rgb" if sample.ndim == 3 else "minisblack", None
    if first.mode == "P" or (has_colours and first.mode == "L"):
        photometric, colormap = "palette", np.zeros((3, 256), np.uint16)
        colormap[:, labels.values] = np.array(labels.colours, np.uint16).T * 257
    tifffile.imwrite(
        path,
        (tile for band in _bands(ids, _TILE) for tile in _tiles(np.asarray(labels.to_image(band)))),
        shape=(*ids.shape, *sample.shape[2:]),
        dtype=sample.dtype,
        photometric=photometric,
        colormap=colormap,
        tile=(_TILE, _TILE),
        compression="zlib",
        metadata=None,
    )


def _tiles(band: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the tiles of a band from left to right, padded to full size."""
    for left in range(0, band.shape[1], _TILE):
        tile = band[:, left : left + _TILE]
        missing = (_TILE - tile.shape[0], _TILE - tile.shape[1])
        yield np.pad(tile, ((0, missing[0]), (0, missing[1]), *((0, 0),) * (band.ndim - 2)))
