"""The mask of each image, in the training masks' own values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers.base import Place
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles, Output
from unet_ddp.prediction.outputs.image_files import write_png, write_tiff
from unet_ddp.prediction.prediction import Prediction

_PIXELS = 1 << 18  # of a band: they fit into a core's cache


class MaskFile(Output):
    """A PNG or TIFF; a TIFF of an image on a map gets its place, and the name of its value of no data."""

    turn: ClassVar[int] = 1

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return the mask's name."""
        return [image.mask]

    def read(self, image: ImageFiles) -> Mask:
        """Return the mask of an earlier prediction."""
        return self.labels.from_file(read_mask(image.mask, labels=self.labels), image.mask)

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write the mask."""
        mark = image.marks.get(image.mask, image.mark)
        write_mask(prediction.mask, self.labels, image.mask, image.source.place, mark)


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
            _write_png(mask, labels, temporary, mark, is_map=place is not None)
            return
        write_tiff(temporary, mask, labels, mark, has_colours=place is not None)
        if place is not None:
            place.write_to(temporary, labels.nodata_tag)


def _write_png(ids: Mask, labels: Labels, path: Path, mark: str, *, is_map: bool) -> None:
    """Write the pixels of `labels.to_image`; of a map, some may have the value of no data."""
    sample = labels.to_image(ids[:1])
    pixels = np.asarray(sample)
    palette, depth = b"", 8 * pixels.dtype.itemsize
    if sample.mode == "P":
        palette = bytes(sample.getpalette() or [])
        depth = 1 if max(labels.values) <= 1 and not is_map else 8
    step = max(1, _PIXELS // ids.shape[1])
    bands = (labels.to_values(ids[top : top + step]) for top in range(0, len(ids), step))
    with path.open("wb") as file:
        write_png(
            file, bands, (len(ids), *pixels.shape[1:]), depth=depth, palette=palette, mark=mark
        )
