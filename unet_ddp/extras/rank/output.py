"""The images that the network is least sure of, to label next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

import numpy as np

from unet_ddp.checks.near_duplicates import ALIKE, normalise
from unet_ddp.checks.scan import THUMBNAIL, read_picture
from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Band, allocate
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import ImageFiles, Output, Receiver
from unet_ddp.prediction.prediction import Prediction


class Rank(Output):
    """A CSV file of all images in the order in which to label them."""

    path_setting = "rank"
    header = "image,uncertainty,nearly_equal_to"

    def __init__(self, config: PredictConfig, labels: Labels, image_format: ImageFormat) -> None:
        super().__init__(config, labels, image_format)
        self._uncertainty: dict[int, float] = {}  # by an image's index

    def check(self, images: Mapping[Source, bool]) -> None:
        """Refuse classes that overlap: their probabilities have no entropy of a pixel."""
        if self.labels.may_overlap:
            raise UserError("--rank: is for classes that do not overlap; leave it out")

    @contextmanager
    def watch(self, image: ImageFiles, prediction: Prediction) -> Iterator[Receiver]:
        """Measure the mean entropy at the outlines of predicted classes; without one, of all pixels.

        It is 0 to 1. Of several networks or transformed copies it is the entropy of their mean
        probabilities, which grows with their disagreement. The edge of pixels without data is no
        outline: they are marked later.
        """
        import cv2

        entropy = allocate(prediction.size, np.float32)

        def see(band: Band) -> None:
            shares = band.probabilities
            logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
            sums = (shares * logarithms).sum(axis=0)
            entropy[band.rows] = -sums / np.log(len(shares))

        yield see
        ids = prediction.ids
        window = np.ones((3, 3), np.uint8)
        is_outline = cv2.dilate(ids, window) != cv2.erode(ids, window)
        measured = entropy[is_outline] if is_outline.any() else entropy
        self._uncertainty[image.index] = float(measured.mean())

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return JSON: uncertainty, path and thumbnail; nan in it is no part of the picture."""
        thumbnail = read_picture(image.source, self.image_format.nodata).ravel()
        has_data = np.isfinite(thumbnail)
        mean = thumbnail[has_data].mean() if has_data.any() else 0
        uncertainty = self._uncertainty.pop(image.index)
        filled = np.where(has_data, thumbnail, mean).tolist()
        return json.dumps([uncertainty, str(image.image), filled])

    def merge(self, records: Iterable[str], file: TextIO) -> None:
        """Write the images in order, those nearly equal to an earlier one last."""
        file.write(self.header)
        rows = sorted(map(json.loads, records), key=lambda row: (-row[0], row[1]))
        thumbnails = normalise(np.array([row[2] for row in rows]).reshape(-1, THUMBNAIL**2))
        paths: list[str] = []  # whose thumbnails are the first ones
        late: list[tuple[str, str, str]] = []
        for own, (uncertainty, path, _) in zip(thumbnails, rows, strict=True):
            shown = f"{uncertainty:.4f}"
            likeness = thumbnails[: len(paths)] @ own
            if likeness.max(initial=0) > ALIKE:
                late.append((path, shown, paths[int(likeness.argmax())]))
                continue
            thumbnails[len(paths)] = own
            paths.append(path)
            file.write("\n" + format_row((path, shown, "")))
        for row in late:
            file.write("\n" + format_row(row))
        file.write("\n")
