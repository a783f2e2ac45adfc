"""Annotations of COCO and Labelme, and the reading of JSON in little memory."""

from __future__ import annotations

import base64
import io
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from unet_ddp.data.masks import Size
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.readers.pillow import identify
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.regions import Patch, draw_runs, fill, paste

_TYPES = {"points": "d", "counts": "q", "rle": "B"}  # of the numbers in JSON, by their keys
_COCO_KEYS = ("id", "image_id", "category_id", "iscrowd", "segmentation")


def load_json(path: Path) -> Any:
    """Return the content of a file, its numbers in arrays."""
    with path.open(encoding="utf-8-sig") as file:
        return json.load(file, object_hook=_pack)


def _pack(fields: dict[str, Any]) -> Any:
    """Return an object of a JSON file with its numbers in arrays: a tenth of the memory."""
    fields.pop("imageData", None)  # Labelme's copy of the image
    for key, kind in _TYPES.items():
        numbers = fields.get(key)
        if isinstance(numbers, list):
            flat = chain.from_iterable(numbers) if key == "points" else numbers
            fields[key] = array(kind, flat)
    parts = fields.get("segmentation")
    if isinstance(parts, list):
        fields["segmentation"] = [array("f", part) for part in parts]
        return {key: fields[key] for key in _COCO_KEYS if key in fields}
    return fields


def open_coco(content: Any) -> AnnotationSet:
    """Return the annotations of a COCO file's content, its classes by their ids."""
    categories = [(each["id"], str(each["name"])) for each in content["categories"]]
    names = dict(sorted(categories))
    return AnnotationSet(dict.fromkeys(names.values(), ""), partial(_read_coco, content, names))


def _read_coco(content: Any, names: Mapping[int, str]) -> Iterator[AnnotatedImage]:
    """Yield the images of a COCO file; crowds come before the objects in them."""
    images: dict[int, AnnotatedImage] = {}
    for each in content["images"]:
        size = each["height"], each["width"]
        images[each["id"]] = AnnotatedImage(each["file_name"], size)
    listed = ("category_id", names, "categories"), ("image_id", images, "images")
    for each in sorted(content["annotations"], key=lambda each: -each.get("iscrowd", 0)):
        for key, known, place in listed:
            if each[key] not in known:
                raise ValueError(f"annotation {each['id']}: {key} {each[key]} is not in {place}")
        image = images[each["image_id"]]
        outline = each.get("segmentation")
        if not any(outline or ()):  # some programs write an empty part
            image.skipped += 1
            continue
        label = names[each["category_id"]]
        draw = draw_runs if isinstance(outline, dict) else fill
        image.add(label, draw, outline, is_crowd=bool(each.get("iscrowd")))
    yield from images.values()


def read_labelme(files: Sequence[Path]) -> Iterator[AnnotatedImage]:
    """Yield the image of each of Labelme's files."""
    for path in files:
        with as_user_error(path):
            image = _parse_labelme(path)
        yield image


def _parse_labelme(path: Path) -> AnnotatedImage:
    """Return the objects in a file of Labelme; polygons of one label and group are one object."""
    content = load_json(path)
    if not (isinstance(content, dict) and "shapes" in content):
        raise UserError(f"{path}: not a file of Labelme; move it elsewhere")
    image = AnnotatedImage(content["imagePath"], (content["imageHeight"], content["imageWidth"]))
    groups: dict[tuple[Any, Any], list[Any]] = {}
    for shape in content["shapes"]:
        label, kind = shape["label"], shape.get("shape_type")
        if kind == "mask":
            image.add(label, _draw_picture, shape["mask"], shape["points"])
        elif kind in (None, "polygon", "oriented_rectangle"):
            group = shape.get("group_id")
            if group is None:
                group = object()  # like no other: an object of one polygon
            if (label, group) not in groups:
                groups[label, group] = []
                image.add(label, fill, groups[label, group])
            groups[label, group].append(shape["points"])
        else:
            image.skipped += 1
    return image


def _draw_picture(encoded: str, corners: Sequence[float], size: Size) -> Patch:
    with identify(io.BytesIO(base64.b64decode(encoded))) as picture:
        if picture.width > size[1] or picture.height > size[0]:
            raise ValueError("a mask that is larger than its image")
        left, top = map(round, corners[:2])
        return paste(np.asarray(picture).astype(bool), left, top, size)
