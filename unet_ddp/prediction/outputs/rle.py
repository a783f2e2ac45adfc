"""Run-length encoding of two-class masks, as the Carvana challenge and others take it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.lists import Listed, ListFile


def rle_file(path: Path, labels: Labels, config: PredictConfig) -> ListFile:
    """Return the CSV file of all images' run lengths, of two classes."""
    num_classes = labels.num_classes
    if num_classes != 2:
        raise UserError(
            f"--rle: its format has two classes, this network has {num_classes}; use --polygons, "
            "or the masks themselves"
        )
    return ListFile(path, partial(format_image, order=config.rle_order), header=b"img,rle_mask")


def format_image(listed: Listed, order: str) -> str:
    """Return an image's row of the CSV file."""
    return format_row((listed.image.name, encode_rle(listed.mask, order)))


def encode_rle(ids: Mask, order: str) -> str:
    """Return where `ids` (H, W) is 1: "start length start length …", counted from 1.

    Pixels are counted along the rows, as in the Carvana challenge, or down the `columns`, as in the
    Data Science Bowl of 2018 and most later challenges. pycocotools has lengths alone, in its own text.
    """
    padded = np.zeros(ids.size + 2, bool)
    padded[1:-1] = np.equal(ids if order == "rows" else ids.T, 1, order="C").ravel()
    bounds = np.flatnonzero(padded[1:] != padded[:-1]) + 1  # starts and ends in turn
    bounds[1::2] -= bounds[::2]
    return " ".join(map(str, bounds.tolist()))
