"""Valid files of annotations, to be mutated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.fuzz.mutations import Dice

KINDS = ("coco", "coco", "labelme", "studio", "studio", "cvat", "cvat", "names", "rows")
"""Formats as often as they are to be tried; YOLO has names of classes, and rows of each image."""

_POINTS = [[2.5, 2], [9, 3], [7.25, 9]]
_NAMES = "names:\n  0: car\n"
_ROWS = "0 0.1 0.1 0.5 0.1 0.5 0.6\n"
_CVAT = """<annotations>
<version>1.1</version>
<meta><job><labels>
<label><name>car</name></label></labels></job></meta>
<image name="{}" width="{}" height="{}">
<polygon label="car" points="2.5,2;9,3;7.25,9" z_order="1"/>
<mask label="car" rle="1, 2, 1" left="2" top="2" width="2" height="2"/>
</image>
</annotations>
"""


def write_annotations(kind: str, image: Path, folder: Path, dice: Dice) -> tuple[Path, Path]:
    """Write the annotations of an image; return the file to import, and the one to mutate."""
    with Image.open(image) as opened:
        size = opened.size
    if kind == "cvat":
        file = folder / "a.xml"
        file.write_text(_CVAT.format(image.name, *size))
        return file, file
    if kind in ("names", "rows"):
        file, rows = folder / "a.yaml", folder / "labels" / f"{image.stem}.txt"
        rows.parent.mkdir()
        rows.write_text(_ROWS)
        file.write_text(_NAMES)
        return file, file if kind == "names" else rows
    file = folder / "a.json"
    content = {"coco": _coco, "labelme": _labelme}.get(kind)
    plain = content(image.name, *size) if content else _studio(image.name, *size, dice)
    file.write_text(json.dumps(plain, indent=1))
    return file, file


def _coco(name: str, width: int, height: int) -> Any:
    outline = [at for point in _POINTS for at in point]
    runs = {"size": [height, width], "counts": [5, 3, width * height - 8]}
    objects = [{"segmentation": [outline]}, {"segmentation": runs, "iscrowd": 1}]
    return {
        "images": [{"id": 3, "file_name": name, "width": width, "height": height}],
        "categories": [{"id": 4, "name": "car"}],
        "annotations": [
            {"id": k, "image_id": 3, "category_id": 4, **each} for k, each in enumerate(objects)
        ],
    }


def _labelme(name: str, width: int, height: int) -> Any:
    shape = {"label": "car", "points": _POINTS, "shape_type": "polygon", "group_id": 1}
    return {"shapes": [shape], "imagePath": name, "imageHeight": height, "imageWidth": width}


def _studio(name: str, width: int, height: int, dice: Dice) -> Any:
    brush = [*(4 * width * height).to_bytes(4, "big"), 57, 27, 255, 11, 255, 255, 0]
    about = {"original_width": width, "original_height": height}
    results = [
        {"type": "polygonlabels", "value": {"points": _POINTS, "polygonlabels": ["car"]}, **about},
        {"type": "brushlabels", "value": {"rle": brush, "brushlabels": ["car"]}, **about},
    ]
    annotations = [{"result": results[: dice.choice((1, 2))]}]
    return [{"data": {"image": name}, "annotations": annotations}]
