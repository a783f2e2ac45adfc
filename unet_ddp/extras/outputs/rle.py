"""Run-length encoding of two-class masks, as the Carvana challenge and others take it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction


class RunLengths(Output):
    """A CSV file of all images' run lengths, of two classes."""

    path_setting = "rle"
    header = "img,rle_mask"

    def check(self, images: Mapping[Source, bool]) -> None:
        """Refuse other than two classes."""
        if not self.labels.is_binary:
            names = ", ".join(self.labels.class_names)[:99]
            raise UserError(
                f"--rle: its format has background and one class, this network has {names}; use "
                "--polygons, or the masks themselves"
            )

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return an image's row."""
        return format_row((image.name, encode_rle(prediction.mask, self.config.rle_order)))


def encode_rle(ids: Mask, order: str) -> str:
    """Return where `ids` (H, W) is 1: "start length start length …", counted from 1.

    Pixels are counted along the rows, as in the Carvana challenge, or down the `columns`, as in the
    Data Science Bowl of 2018 and most later challenges. pycocotools has lengths alone, in its own text.
    """
    padded = np.zeros(ids.size + 2, bool)
    if order != "rows":
        ids = ids.T
    padded[1:-1] = np.equal(ids, 1, order="C").ravel()
    bounds = np.flatnonzero(padded[1:] != padded[:-1]) + 1  # starts and ends in turn
    bounds[1::2] -= bounds[::2]
    return " ".join(map(str, bounds.tolist()))
