"""The objects in numbered masks as a CSV file, in the coordinates of `polygons`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.lists import Listed, ListFile

_HEADER = b"image,number,class,area,x,y,left,top,right,bottom,probability"


def objects_file(path: Path, labels: Labels, config: PredictConfig) -> ListFile:
    """Return the CSV file of the objects in all images."""
    if not isinstance(labels, ObjectLabels):
        raise UserError(
            f"--objects {path}: this network was not trained with --instances; use --polygons"
        )
    return ListFile(path, partial(format_objects, labels=labels), _HEADER)


def format_objects(listed: Listed, labels: ObjectLabels) -> str:
    """Return an image's rows: of each object its number, class, pixels, centre and box in pixels.

    The probability is the mean over its pixels that they belong to an object; empty if unknown.
    """
    from skimage.measure import regionprops

    extent = listed.extent
    rows, (classes, numbers) = [], labels.split_values(listed.mask)
    for region in regionprops(numbers.astype(np.int32, copy=False), extent):
        class_name = labels.class_names[classes[tuple(region.coords[0])]]
        (y, x), (top, left, bottom, right) = region.centroid, region.bbox
        mean = "" if extent is None else f"{region.intensity_mean / 255:.4f}"
        centre = f"{x + 0.5:.2f}", f"{y + 0.5:.2f}"
        box = left, top, right, bottom
        about = listed.image.name, region.label, class_name, int(region.area)
        rows.append((*about, *centre, *box, mean))
    return "\n".join(map(format_row, rows))
