"""Predicted objects as annotation tools open them: a COCO file, or Labelme's next to each mask.

An outline is less than a pixel from the edges of the object's pixels. Holes, which neither format
has, are joined to it by a line there and back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Mask
from unet_ddp.errors import UserError
from unet_ddp.files import write_errors, write_text
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.lists import Listed, ListFile, read_shards
from unet_ddp.prediction.outputs.polygons import polygons

Ring = list[list[float]]

_TOLERANCE = 0.6  # pixels from the middles of the edges of pixels, which keeps it below 1


class CocoFile(ListFile):
    """The COCO file of all images; a line per image, and one per object, lack their ids."""

    def write_lines(self, file: IO[bytes], size: int) -> None:
        """Write the images of all `size` processes, and then their objects."""
        separator = b"\n"
        for number, block in enumerate(read_shards(self.path, size), start=1):
            file.write(separator + b'{"id":%d,' % number + block.split(b"\n")[0])
            separator = b",\n"
        file.write(b'],\n"annotations":[')
        separator, count = b"\n", 0
        for number, block in enumerate(read_shards(self.path, size), start=1):
            for line in block.split(b"\n")[1:]:
                count += 1
                file.write(separator + b'{"id":%d,"image_id":%d,' % (count, number) + line)
                separator = b",\n"


def coco_file(path: Path, labels: Labels, config: PredictConfig) -> ListFile:
    """Return the COCO file of the objects in all images; category ids are class ids."""
    if path.suffix.lower() != ".json":
        raise UserError(f"--annotations {path}: use labelme, or a name with .json for COCO")
    names = [{"id": k, "name": labels.class_names[k]} for k in labels.foreground]
    categories = json.dumps(names)
    header = f'{{"categories":{categories},\n"images":['.encode()
    return CocoFile(path, partial(_format_coco, labels=labels), header, footer=b"]}\n")


def _format_coco(listed: Listed, labels: Labels) -> str:
    """Return JSON without its first brace: a line for the image, and one for each object."""
    height, width = listed.mask.shape
    image = {"file_name": listed.image.name, "width": width, "height": height}
    lines: list[dict[str, Any]] = [image]
    for k, ring, area in _find_objects(listed.mask, labels):
        corner, end = np.min(ring, axis=0), np.max(ring, axis=0)
        outline = [[at for point in ring for at in point]]
        box = [*corner.tolist(), *(end - corner).tolist()]
        lines.append({"category_id": k, "segmentation": outline, "area": area, "bbox": box, "iscrowd": 0})  # fmt: skip
    return "\n".join(json.dumps(line)[1:] for line in lines)


def write_labelme(mask: Mask, labels: Labels, image: Path, path: Path) -> None:
    """Write the objects in an image as a file that Labelme opens, and with it the image."""
    shapes: list[dict[str, Any]] = []
    for k, ring, _ in _find_objects(mask, labels):
        shape = {"label": labels.class_names[k], "points": ring, "shape_type": "polygon"}
        shapes.append({**shape, "group_id": None, "flags": {}})
    content = {
        "version": "5.0.0",
        "flags": {},
        "shapes": shapes,
        "imagePath": os.path.relpath(image, path.parent),
        "imageData": None,
        "imageHeight": mask.shape[0],
        "imageWidth": mask.shape[1],
    }
    with write_errors(path, "make room, or use another --output"):
        write_text(path, json.dumps(content, indent=1) + "\n")


def _find_objects(mask: Mask, labels: Labels) -> Iterator[tuple[int, Ring, int]]:
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

    corners, edges = np.array(ring[:-1]), np.diff(ring, axis=0)
    lengths = np.abs(edges).sum(axis=1)
    steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 0.5
    ways = np.repeat(np.sign(edges), lengths, axis=0)
    middles = np.repeat(corners, lengths, axis=0) + ways * steps[:, None]  # of the pixels' edges
    kept = cv2.approxPolyDP(middles[:, None].astype(np.float32), _TOLERANCE, closed=True)[:, 0]
    kept = kept if len(kept) > 2 else middles
    return [*kept.tolist(), kept[0].tolist()]


def join_rings(rings: list[Ring]) -> Ring:
    """Return one open ring: each further one is joined to the nearest point of those before."""
    joined = np.array(rings[0])
    for ring in rings[1:]:
        nearest = int(np.abs(joined - ring[0]).sum(axis=1).argmin())
        joined = np.concatenate([joined[: nearest + 1], ring, joined[nearest:]])
    return joined[:-1].tolist()  # type: ignore[no-any-return]
