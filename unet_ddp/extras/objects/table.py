"""The objects in numbered masks as a CSV file, in the coordinates of `--polygons`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction


class ObjectTable(Output):
    """A CSV file of the objects in all images."""

    path_setting = "objects"
    header = "image,number,class,area,x,y,left,top,right,bottom,probability"

    def check(self, images: Mapping[Source, bool]) -> None:
        """Refuse a network for classes."""
        if not isinstance(self.labels, ObjectLabels):
            raise UserError(
                f"--objects {self.path}: this network was not trained with --instances; use --polygons"
            )

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
            about = image.image.name, region.label, class_name, int(region.area)
            y, x = region.centroid
            centre = f"{x + 0.5:.2f}", f"{y + 0.5:.2f}"
            top, left, bottom, right = region.bbox
            mean = "" if extent is None else f"{region.intensity_mean / 255:.4f}"
            row = *about, *centre, left, top, right, bottom, mean
            rows.append(format_row(row))
        return "\n".join(rows)
