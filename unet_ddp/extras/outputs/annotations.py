"""Predicted objects as annotation tools open them: a COCO file, or Labelme's next to each mask.

An outline is less than a pixel from the edges of the object's pixels. Holes, which neither format
has, are joined to it by a line there and back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.outputs.polygons import polygons
from unet_ddp.files import write_errors, write_text
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import ADVICE, ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction

Ring = list[list[float]]

_TOLERANCE = 0.6  # pixels from the middles of the edges of pixels, which keeps it below 1


def open_annotations(
    config: PredictConfig, labels: Labels, image_format: ImageFormat
) -> CocoFile | LabelmeFiles:
    """Return the output that --annotations asks for."""
    kind = LabelmeFiles if config.annotations == "labelme" else CocoFile
    return kind(config, labels, image_format)


class _Annotations(Output):
    def check(self, images: Mapping[Source, bool]) -> None:
        """Refuse a machine without rasterio, which finds the outlines."""
        check_installed("rasterio", "geo", "--annotations")


class CocoFile(_Annotations):
    """The COCO file of the objects in all images; category ids are class ids."""

    path_setting = "annotations"

    def check(self, images: Mapping[Source, bool]) -> None:
        """Refuse another name than .json."""
        super().check(images)
        if not str(self.path).lower().endswith(".json"):
            raise UserError(
                f"--annotations {self.path}: use labelme, or a name with .json for COCO"
            )

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return JSON without its first brace, and ids: a line for the image, and one for each object."""
        height, width = prediction.size
        lines: list[dict[str, Any]] = [{"file_name": image.name, "width": width, "height": height}]
        for k, ring, area in find_outlines(prediction.mask, self.labels):
            points = np.array(ring)
            corner = points.min(axis=0)
            box = np.concatenate([corner, points.max(axis=0) - corner])
            shape = {
                "category_id": k,
                "segmentation": [points.ravel().tolist()],
                "area": area,
                "bbox": box.tolist(),
                "iscrowd": 0,
            }
            lines.append(shape)
        return "\n".join(json.dumps(line)[1:] for line in lines)

    def merge(self, records: Iterable[str], file: TextIO) -> None:
        """Write the images, and then their objects."""
        names = [{"id": k, "name": self.labels.class_names[k]} for k in self.labels.foreground]
        file.write(f'{{"categories":{json.dumps(names)},\n"images":[')
        separator = "\n"
        for number, record in enumerate(records, start=1):
            image, *_ = record.split("\n", 1)
            file.write(f'{separator}{{"id":{number},{image}')
            separator = ",\n"
        file.write('],\n"annotations":[')
        separator, count = "\n", 0
        for number, record in enumerate(records, start=1):
            _, *shapes = record.split("\n")
            for shape in shapes:
                count += 1
                file.write(f'{separator}{{"id":{count},"image_id":{number},{shape}')
                separator = ",\n"
        file.write("\n]}\n")


class LabelmeFiles(_Annotations):
    """The objects in each image as a file that Labelme opens, and with it the image."""

    turn: ClassVar[int] = 2

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return the name of the file."""
        return [image.named(".json")]

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write the file."""
        (path,) = self.files(image)
        shapes: list[dict[str, Any]] = []
        for k, ring, _ in find_outlines(prediction.mask, self.labels):
            shape: dict[str, Any] = {
                "label": self.labels.class_names[k],
                "points": ring,
                "shape_type": "polygon",
                "group_id": None,
                "flags": {},
            }
            shapes.append(shape)
        height, width = prediction.size
        content: dict[str, Any] = {
            "version": "5.0.0",
            "flags": {},
            "shapes": shapes,
            "imagePath": os.path.relpath(image.image, path.parent),
            "imageData": None,
            "imageHeight": height,
            "imageWidth": width,
        }
        with write_errors(path, ADVICE):
            write_text(path, json.dumps(content, indent=1) + "\n")


def find_outlines(mask: Mask, labels: Labels) -> Iterator[tuple[int, Ring, int]]:
    """Yield class id, outline and number of pixels of each object."""
    for feature in polygons("", mask, labels):
        about = feature["properties"]
        k = labels.class_names.index(about["class"])
        if k in labels.foreground:
            rings = map(_simplify, feature["geometry"]["coordinates"])
            yield k, join_rings([*rings]), about["area"]


def _simplify(ring: Ring) -> Ring:
    """Return a closed ring, along the edges of pixels, with fewer corners."""
    import cv2

    edges = np.diff(ring, axis=0)
    lengths = np.abs(edges).sum(axis=1)
    begins = np.cumsum(lengths) - lengths
    steps = np.arange(lengths.sum()) - np.repeat(begins, lengths) + 0.5
    ways = np.repeat(np.sign(edges), lengths, axis=0)
    corners = np.repeat(ring[:-1], lengths, axis=0)
    middles = corners + ways * steps[:, None]  # of the pixels' edges
    kept = cv2.approxPolyDP(middles[:, None].astype(np.float32), _TOLERANCE, closed=True)[:, 0]
    if len(kept) <= 2:
        kept = middles
    return [*kept.tolist(), kept[0].tolist()]


def join_rings(rings: list[Ring]) -> Ring:
    """Return one open ring: each further one is joined to the nearest point of those before."""
    joined = np.array(rings[0])
    for ring in rings[1:]:
        nearest = int(np.abs(joined - ring[0]).sum(axis=1).argmin())
        joined = np.concatenate([joined[: nearest + 1], ring, joined[nearest:]])
    return joined[:-1].tolist()  # type: ignore[no-any-return]
