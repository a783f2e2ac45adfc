"""Annotations of COCO and Labelme, and the reading of JSON in little memory."""

from __future__ import annotations

import base64
import io
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Size
from unet_ddp.data.names import file_key
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.readers.pillow import identify
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.fields import Fields, show, to_points
from unet_ddp.extras.annotations.masks import list_names
from unet_ddp.extras.annotations.regions import Patch, draw_runs, fill, paste
from unet_ddp.files.contents import read_json

_TYPES = {"points": "d", "counts": "q", "rle": "B"}  # of the numbers in JSON, by their keys
AREAS = "Polygon", "MultiPolygon"  # geometries of GeoJSON
_LEAST = 6  # numbers of an outline that has a pixel
_LARGEST = 1e6  # pixels
_COCO_KEYS = ("id", "image_id", "category_id", "iscrowd", "segmentation")


def load_json(path: Path) -> Any:
    """Return the content of a file, its numbers in arrays."""
    return read_json(path, "a file of annotations", hook=_pack)


def _pack(fields: dict[str, Any]) -> Any:
    """Return an object of a JSON file with its numbers in arrays: a tenth of the memory.

    Other values stay as they are: an error names them when they are used.
    """
    fields.pop("imageData", None)  # Labelme's copy of the image
    for key, kind in _TYPES.items():
        numbers = fields.get(key)
        if isinstance(numbers, list):
            fields[key] = _pack_numbers(numbers, kind, is_nested=key == "points")
    if fields.get("type") in AREAS:
        fields["coordinates"] = _pack_rings(fields.get("coordinates"), fields["type"])
    parts = fields.get("segmentation")
    if isinstance(parts, list):
        fields["segmentation"] = [
            _pack_numbers(part, "f") if isinstance(part, list) else part for part in parts
        ]
        return {key: fields[key] for key in _COCO_KEYS if key in fields}
    return fields


def _pack_numbers(numbers: list[Any], kind: str, *, is_nested: bool = False) -> Any:
    try:
        if is_nested and {len(pair) for pair in numbers} - {2}:
            return numbers
        return array(kind, chain.from_iterable(numbers) if is_nested else numbers)
    except (TypeError, ValueError, OverflowError):
        return numbers


def _pack_rings(coordinates: Any, kind: str) -> Any:
    """Return the rings of all polygons of a geometry as arrays (N, 2); what is wrong as it is."""
    try:
        rings = coordinates if kind == "Polygon" else chain.from_iterable(coordinates)
        return [np.asarray(ring, np.float64)[:, :2] for ring in rings]  # a third number is a height
    except (TypeError, ValueError, IndexError):
        return coordinates


def open_coco(content: Any) -> AnnotationSet:
    """Return the annotations of a COCO file's content, its classes by their ids.

    A category that has no annotation and is named as the supercategory of another is none: Roboflow
    writes one above all others.
    """
    file = Fields(content, "COCO")
    categories = [(each.key("id"), each) for each in file.rows("categories", "category")]
    annotations = [*file.rows("annotations", "annotation")]
    if any(each.has("segments_info") for each in annotations):
        raise UserError(
            "COCO panoptic, whose areas are in its PNG files; convert it to COCO with segmentation (panopticapi: "
            "converter/panoptic2detection_coco_format.py)"
        )
    used = {each.key("category_id") for each in annotations}
    parents = {
        (each.values["supercategory"], name)
        for name, each in categories
        if isinstance(each.values.get("supercategory"), str)
    }
    names: dict[str, str] = {}
    roots = []
    for key, each in sorted(categories, key=lambda category: _order(category[0])):
        name = each.text("name")
        _check_once(each, key, name, names)
        if key not in used and any(parent == name and child != key for parent, child in parents):
            roots.append(name)
        else:
            names[key] = name
    notes = [f"category {name} has no object and is above others: no class" for name in roots]
    return AnnotationSet(dict.fromkeys(names.values(), ""), partial(_read_coco, file, names), notes)


def _check_once(each: Fields, key: str, name: str, known: Mapping[str, str]) -> None:
    """Refuse an id of two names, as files have that were joined: whose its objects are is not known."""
    other = known.get(key, name)
    if other != name:
        raise UserError(
            f"{each.where}: its id is that of {shorten(other)} and of {shorten(name)}; give each its own, or "
            "import the files that were joined one by one"
        )


def _order(key: str) -> tuple[bool, int, str]:
    """Return the place of an id among others: numbers first, by their values."""
    is_number = key.isdecimal()
    return not is_number, int(key) if is_number else 0, key


def _read_coco(file: Fields, names: Mapping[str, str]) -> Iterator[AnnotatedImage]:
    """Yield the images of a COCO file; crowds come before the objects in them."""
    images: dict[str, AnnotatedImage] = {}
    files: dict[str, str] = {}
    for each in file.rows("images", "image"):
        key, name = each.key("id"), each.text("file_name")
        _check_once(each, key, name, files)
        files[key] = name
        images[key] = AnnotatedImage(name, each.size("height", "width"))
    listed = ("category_id", names, "categories"), ("image_id", images, "images")
    objects = [(_is_crowd(each), each) for each in file.rows("annotations", "annotation")]
    for is_crowd, each in sorted(objects, key=lambda item: not item[0]):
        for key, known, place in listed:
            if each.key(key) not in known:
                raise UserError(f"{each.where}: {key} {show(each.get(key))} is not in {place}")
        image = images[each.key("image_id")]
        outline = _find_outline(each)
        if not outline:  # a box, or an empty part, as some programs write
            image.skipped += 1
            continue
        draw = draw_runs if isinstance(outline, dict) else fill
        label = names[each.key("category_id")]
        image.add(label, draw, outline, is_crowd=is_crowd, where=each.where)
    yield from images.values()


def _is_crowd(each: Fields) -> bool:
    if isinstance(each.values.get("iscrowd"), bool):
        return bool(each.values["iscrowd"])
    return each.has("iscrowd") and each.whole("iscrowd") != 0


def _find_outline(each: Fields) -> Any:
    """Return the polygons of an annotation that have three points or more, or its run lengths."""
    outline = each.values.get("segmentation")
    if isinstance(outline, list) and len(outline) == 1 and isinstance(outline[0], dict):
        outline = outline[0]  # run lengths in a list of their own
    if not isinstance(outline, list):
        if not isinstance(outline, (dict, type(None))):
            raise each.refuse("segmentation", "a list of polygons, or run lengths")
        return outline
    if any(isinstance(part, (int, float, str)) for part in outline) or _are_points(outline):
        outline = [outline]
    where = f"{each.where}: segmentation: a polygon"
    parts = [part if _is_outline(part) else to_points(part, where) for part in outline]
    return [part for part in parts if np.size(part) >= _LEAST]


def _are_points(parts: list[Any]) -> bool:
    """Return whether a list is one polygon of pairs, and no list of polygons."""
    is_list = all(isinstance(part, (list, array)) for part in parts)
    return is_list and len(parts) > 2 and all(len(part) == 2 for part in parts)


def _is_outline(part: Any) -> bool:
    return isinstance(part, array) and len(part) % 2 == 0


def read_labelme(files: Sequence[Path], images: Iterable[str]) -> Iterator[AnnotatedImage]:
    """Yield the image of each of Labelme's files; `images` are the names of those that exist."""
    known = {name.rpartition("/")[2] for name in images}
    for path in files:
        with as_user_error(path):
            image = _parse_labelme(path)
        own, named = file_key(path.stem), list_names(file_key(PureWindowsPath(image.name).name))
        if own in known.difference(named):  # one of them was renamed
            if not known.isdisjoint(named):
                raise UserError(
                    f"{path}: its imagePath is {shorten(image.name)}, but it has the name of another image; name the file "
                    "or its imagePath like its image"
                )
            image.name = str(path)
        yield image


def _parse_labelme(path: Path) -> AnnotatedImage:
    """Return the objects in a file of Labelme; polygons of one label and group are one object."""
    content = load_json(path)
    if not (isinstance(content, dict) and "shapes" in content):
        raise UserError(
            f"{path}: not a file of Labelme; move it elsewhere, or give another tool's file itself"
        )
    file = Fields(content, str(path))
    name = file.text("imagePath") if file.has("imagePath") else path.name
    image = AnnotatedImage(name, file.size("imageHeight", "imageWidth"))
    groups: dict[tuple[str, str], list[Any]] = {}
    for number, shape in enumerate(file.rows("shapes", "shape")):
        label = shape.text("label")
        kind = shape.text("shape_type") if shape.has("shape_type") else "polygon"
        if kind == "mask":
            corners = to_points(shape.get("points"), f"{shape.where}: points")
            draw, what = _draw_picture, (shape.text("mask"), corners)
            image.add(label, draw, *what, where=shape.where)
        elif kind in ("polygon", "oriented_rectangle"):
            points = to_points(shape.get("points"), f"{shape.where}: points")
            if points.size < _LEAST:
                image.skipped += 1
                continue
            group = f"alone {number}"  # like no other: an object of one polygon
            if shape.has("group_id"):
                group = shape.key("group_id")
            if (label, group) not in groups:
                groups[label, group] = []
                image.add(label, fill, groups[label, group], where=shape.where)
            groups[label, group].append(points)
        else:
            image.skipped += 1
    return image


def _draw_picture(encoded: str, corners: NDArray[np.float64], size: Size) -> Patch:
    try:
        picture = identify(io.BytesIO(base64.b64decode(encoded, validate=False)))
    except (ValueError, OSError):
        raise UserError("mask is no picture in base64; annotate it again") from None
    with picture:
        if picture.width > size[1] or picture.height > size[0]:
            raise UserError("a mask that is larger than its image")
        if not len(corners) or not (np.abs(corners) < _LARGEST).all():
            raise UserError("a mask without its place: points has none")
        left, top = (round(at) for at in corners[0])
        return paste(np.asarray(picture).astype(bool), left, top, size)
