"""Files of annotations as the tools write them, each by hand after the format's own description.

Objects are (label, mask (H, W)) or (label, outlines). The descriptions:
COCO            cocodataset.org/#format-data; run lengths by pycocotools itself
Labelme         write_label_file in labelme/_label_file.py of labelme 6.3.1
Label Studio    labelstud.io/guide/export, tags/brushlabels; encode_rle of label-studio-converter 0.0.59
CVAT            docs.cvat.ai/docs/dataset_management/formats/format-cvat, docs/other/xml_format
YOLO            docs.ultralytics.com/datasets/segment
QuPath          qupath.readthedocs.io/en/stable/docs/advanced/exporting_annotations.html
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.labels import Labels
from unet_ddp.extras.outputs.annotations import join_rings
from unet_ddp.extras.outputs.polygons import polygons

coco_mask = pytest.importorskip("pycocotools.mask", reason="pycocotools is not installed")

Mask = NDArray[np.bool_]
Objects = Mapping[str, Sequence[tuple[str, Mask]]]  # by image


def outlines(mask: Mask) -> list[list[list[int]]]:
    """Return the outline of each connected part of a mask, its holes joined to it."""
    features = polygons("", mask.view(np.uint8), Labels((0, 1)))
    return [join_rings(feature["geometry"]["coordinates"]) for feature in features]


def flat(outline: Sequence[Sequence[float]]) -> list[float]:
    return [float(number) for point in outline for number in point]


# -- COCO ----------------------------------------------------------------------------------


def coco(path: Path, objects: Objects, kind: str = "polygons") -> Path:
    """Write a COCO file; ids are neither consecutive nor in order."""
    names = sorted({label for each in objects.values() for label, _ in each})
    ids = {name: 90 - 7 * k for k, name in enumerate(reversed(names))}
    images, annotations = [], []
    for number, (image, each) in enumerate(objects.items()):
        height, width = each[0][1].shape if each else (1, 1)
        images.append(
            {"id": 1000 - 3 * number, "file_name": image, "width": width, "height": height}
        )
        for label, mask in each:
            annotations.append({
                "id": 5 * len(annotations) + 2, "image_id": 1000 - 3 * number,
                "category_id": ids[label], "iscrowd": int(kind != "polygons"),
                "segmentation": coco_segmentation(mask, kind), "area": int(mask.sum()),
                "bbox": [0, 0, width, height],
            })  # fmt: skip
    categories = [{"id": ids[name], "name": name, "supercategory": ""} for name in names]
    content = {
        "info": {},
        "images": images,
        "annotations": annotations,
        "categories": categories[::-1],
    }
    path.write_text(json.dumps(content))
    return path


def coco_segmentation(mask: Mask, kind: str) -> Any:
    if kind == "polygons":
        return [flat(outline) for outline in outlines(mask)]
    runs = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    if kind == "compressed":
        return {"size": runs["size"], "counts": runs["counts"].decode()}
    columns = np.concatenate([[0], mask.T.ravel(), [0]]).astype(np.int8)
    bounds = np.flatnonzero(np.diff(columns, prepend=0, append=0)) - 1
    edges = np.concatenate([[0], bounds, [mask.size]])
    return {"size": [*mask.shape], "counts": np.diff(edges).tolist()}


# -- Labelme -------------------------------------------------------------------------------


def labelme(folder: Path, objects: Objects, kind: str = "polygons") -> Path:
    for image, each in objects.items():
        shapes = []
        for group, (label, mask) in enumerate(each):
            about = {"label": label, "group_id": group, "description": "", "flags": {}}
            if kind == "masks":
                rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
                box = [[columns[0], rows[0]], [columns[-1], rows[-1]]]
                cut = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
                png = io.BytesIO()
                Image.fromarray(cut.astype(np.uint8)).save(png, "PNG")
                points = [[float(x), float(y)] for x, y in box]
                encoded = base64.b64encode(png.getvalue()).decode()
                shapes.append({**about, "points": points, "shape_type": "mask", "mask": encoded})
                continue
            shapes += [
                {**about, "points": outline, "shape_type": "polygon", "mask": None}
                for outline in outlines(mask)
            ]
        height, width = each[0][1].shape if each else (1, 1)
        content = {
            "version": "6.3.1", "flags": {}, "shapes": shapes,
            "imagePath": "..\\images\\" + image.replace("/", "\\"), "imageData": None,
            "imageHeight": height, "imageWidth": width,
        }  # fmt: skip
        path = (folder / image).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return folder


# -- QuPath ---------------------------------------------------------------------------------


def qupath(folder: Path, objects: Objects) -> Path:
    """Write a file for each image, named x.geojson or x.png.geojson."""
    for number, (image, each) in enumerate(objects.items()):
        features: list[Any] = [{"type": "Feature", "id": "1", "geometry": None, "properties": {}}]
        for label, mask in each:
            parts = polygons("", mask.view(np.uint8), Labels((0, 1)))
            features.append({
                "type": "Feature", "id": f"{len(features)}",
                "geometry": {
                    "type": "MultiPolygon",
                    "coordinates": [part["geometry"]["coordinates"] for part in parts],
                },
                "properties": {
                    "objectType": "annotation", "isLocked": False,
                    "classification": {"name": label, "color": [200, 0, 0]},
                },
            })  # fmt: skip
        path = folder / f"{image if number % 2 else image.rpartition('.')[0]}.geojson"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return folder


# -- Label Studio --------------------------------------------------------------------------


def label_studio(path: Path, objects: Objects, kind: str = "polygons") -> Path:
    tasks = []
    for number, (image, each) in enumerate(objects.items()):
        results = []
        for label, mask in each:
            about = {
                "original_width": mask.shape[1], "original_height": mask.shape[0],
                "image_rotation": 0, "from_name": "label", "to_name": "image", "origin": "manual",
            }  # fmt: skip
            if kind == "brush":
                value = {"format": "rle", "rle": pack_brush(mask), "brushlabels": [label]}
                results.append({**about, "type": "brushlabels", "value": value})
                continue
            for outline in outlines(mask):
                percent = (np.array(outline) * 100 / mask.shape[::-1]).tolist()
                value = {"points": percent, "closed": True, "polygonlabels": [label]}
                results.append({**about, "type": "polygonlabels", "value": value})
        cancelled = {"id": 1, "was_cancelled": True, "result": []}
        done = {"id": 2, "was_cancelled": False, "result": results, "completed_by": 1}
        name = f"/data/local-files/?d=images/{image}"
        if "/" not in image:
            name = f"/data/upload/1/0a1b2c3d-{image}"
        tasks.append({"id": number, "annotations": [cancelled, done], "data": {"image": name}, "predictions": []})  # fmt: skip
    path.write_text(json.dumps(tasks))
    return path


def pack_brush(mask: Mask) -> list[int]:
    """Return a mask by encode_rle of label-studio-converter, with runs of every width."""
    values = np.repeat(mask.ravel().astype(np.uint8) * 255, 4)
    widths = [3, 4, 8, 16]
    bits = f"{values.size:032b}" + f"{7:05b}" + "".join(f"{width - 1:04b}" for width in widths)
    starts = np.flatnonzero(np.diff(values.astype(int), prepend=-1))
    for start, length in zip(starts, np.diff([*starts, values.size]), strict=True):
        while length:
            kind = next((k for k, width in enumerate(widths) if length <= 2**width), 3)
            run = min(int(length), 2 ** widths[kind])
            is_run = run > 4  # the tool itself writes short runs as values
            bits += f"{int(is_run)}{kind:02b}{run - 1:0{widths[kind]}b}"
            bits += f"{values[start]:08b}" * (1 if is_run else run)
            length -= run
    bits += "0" * (-len(bits) % 8)
    return [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]


# -- CVAT and YOLO -------------------------------------------------------------------------


def cvat(path: Path, objects: Objects, kind: str = "polygons") -> Path:
    names = sorted({label for each in objects.values() for label, _ in each})
    labels = "".join(
        f"<label><name>{name}</name><color>#{40 * k + 20:02x}80ff</color><type>any</type>"
        "<attributes><attribute><name>not a class</name></attribute></attributes></label>"
        for k, name in enumerate(names)
    )
    lines = [
        "<?xml version='1.0' encoding='utf-8'?>", "<annotations>", "<version>1.1</version>",
        f"<meta><job><id>1</id><labels>{labels}</labels></job><dumped>now</dumped></meta>",
    ]  # fmt: skip
    for number, (image, each) in enumerate(objects.items()):
        height, width = each[0][1].shape if each else (1, 1)
        lines.append(
            f'<image id="{number}" name={quoteattr(image)} width="{width}" height="{height}">'
        )
        shapes = []
        for order, (label, mask) in enumerate(each):
            about = f'label={quoteattr(label)} source="manual" occluded="0" z_order="{order}"'
            if kind == "masks":
                rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
                cut = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
                edges = np.flatnonzero(np.diff(cut.ravel().astype(int), prepend=0))
                counts = np.diff([0, *edges, cut.size])
                shapes.append(
                    f'<mask {about} rle="{", ".join(map(str, counts))}" left="{columns[0]}" '
                    f'top="{rows[0]}" width="{cut.shape[1]}" height="{cut.shape[0]}"></mask>'
                )
                continue
            for outline in outlines(mask):
                points = ";".join(f"{x:.2f},{y:.2f}" for x, y in outline)
                shapes.append(f'<polygon {about} points="{points}"></polygon>')
        lines += [*shapes[::-1], "</image>"]  # z_order says which is above, not the place
    path.write_text("\n".join([*lines, "</annotations>"]), encoding="utf-8")
    return path


def yolo(folder: Path, objects: Objects) -> Path:
    """Write labels/*.txt beside the folder images; an object's parts are joined by lines."""
    names = sorted({label for each in objects.values() for label, _ in each})
    for image, each in objects.items():
        path = (folder / "labels" / image).with_suffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for label, mask in each:
            joined = join_rings([[*outline, outline[0]] for outline in outlines(mask)])
            points = flat((np.array(joined) / mask.shape[::-1]).tolist())
            lines.append(" ".join([str(names.index(label)), *(f"{at:.6f}" for at in points)]))
        path.write_text("\n".join(lines) + "\n")
    file = folder / "data.yaml"
    file.write_text(
        yaml.safe_dump({"path": ".", "train": "images", "names": dict(enumerate(names))})
    )
    return file
