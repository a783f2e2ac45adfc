"""The objects in numbered masks as CSV files: a row for each object, and a row for each image.

They have the coordinates of `--polygons`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction


class _Table(Output):
    def check(self, images: Mapping[Source, bool]) -> None:
        """Refuse a network for classes."""
        if not isinstance(self.labels, ObjectLabels):
            raise UserError(
                f"{self.flag} {self.path}: this network was not trained with --instances; use --polygons"
            )


class ObjectTable(_Table):
    """A CSV file of the objects in all images; one without objects has no row."""

    flag = "--objects"
    path_setting = "objects"
    header = "image,number,class,area,x,y,left,top,right,bottom,probability"

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return an image's rows: of each object its number, class, pixels, centre and box in pixels.

        The probability is the mean over its pixels that they belong to an object; empty if unknown.
        """
        from skimage.measure import regionprops

        labels, extent = cast(ObjectLabels, self.labels), prediction.extent
        classes, numbers = labels.split_values(prediction.mask)
        rows = []
        for region in regionprops(numbers.astype(np.int32, copy=False), extent):
            class_name = labels.class_names[classes[tuple(region.coords[0])]]
            about = image.name, region.label, class_name, int(region.area)
            y, x = region.centroid
            centre = f"{x + 0.5:.2f}", f"{y + 0.5:.2f}"
            top, left, bottom, right = region.bbox
            mean = "" if extent is None else f"{region.intensity_mean / 255:.4f}"
            rows.append(format_row((*about, *centre, left, top, right, bottom, mean)))
        return "\n".join(rows)


class CountTable(_Table):
    """A CSV file with a row for each image: its numbers of objects, 0 where none was found."""

    flag = "--counts"
    path_setting = "counts"

    def __init__(self, config: PredictConfig, labels: Labels, image_format: ImageFormat) -> None:
        super().__init__(config, labels, image_format)
        columns = ["image", "objects", "area", "mean_area", "share"]
        if isinstance(labels, ObjectLabels) and labels.has_classes:
            columns += [f"objects_{name}" for name in labels.foreground_names]
        self.header = format_row(columns)

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return an image's row: objects, their pixels in all and on average, their share of all pixels.

        The objects of each class follow, if there are several. The mean area of none is empty.
        """
        labels = cast(ObjectLabels, self.labels)
        classes, numbers = labels.split_values(prediction.mask)
        areas = [np.bincount(numbers[classes == k]) for k in labels.bodies]
        counts = [int(np.count_nonzero(each)) for each in areas]
        count, area = sum(counts), int(np.sum([each.sum() for each in areas]))
        mean = f"{area / count:.2f}" if count else ""
        cells = [image.name, count, area, mean, f"{area / numbers.size:.6f}"]
        return format_row([*cells, *counts] if len(counts) > 1 else cells)
