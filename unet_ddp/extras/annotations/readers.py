"""Readers of annotation files: COCO, Labelme, Label Studio, CVAT for images, YOLO segmentation."""

from __future__ import annotations

import base64
import io
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import iterparse
from xml.parsers import expat

import numpy as np

from unet_ddp.cli.recipes import read_settings
from unet_ddp.data.masks import Size
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.readers.pillow import identify
from unet_ddp.data.readers.read import list_suffixes
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations import regions
from unet_ddp.extras.annotations.regions import Patch, fill, paste
from unet_ddp.files import refuse_special

_TYPES = {"points": "d", "counts": "q", "rle": "B"}  # of the numbers in JSON, by their keys
_COCO_KEYS = ("id", "image_id", "category_id", "iscrowd", "segmentation")


class Region(NamedTuple):
    """An annotated object."""

    label: str
    draw: Callable[[Size], Patch]
    is_crowd: bool = False  # several objects, not told apart


@dataclass
class AnnotatedImage:
    """The annotations of one image."""

    name: str  # its path in another place, perhaps of another system
    size: Size | None  # at which it was annotated
    regions: list[Region] = field(default_factory=list)
    skipped: int = 0  # boxes, ellipses, lines and points

    def add(self, label: str, draw: Any, *shape: Any, is_crowd: bool = False) -> None:
        """Add an object, which `draw` makes of its shape and the image's size."""
        self.regions.append(Region(label, partial(draw, *shape), is_crowd))


class Source(NamedTuple):
    """The annotations of a data set."""

    classes: Mapping[str, str]  # their names in the file, if it lists them, with #rrggbb or nothing
    read: Callable[[], Iterator[AnnotatedImage]]


def open_source(path: Path, images: Mapping[str, Path]) -> Source:
    """Return the annotations of `images`, by name without suffix, in a file or a folder."""
    refuse_special(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _open_yolo(path, images)
    if path.suffix.lower() == ".xml":
        return Source(_list_cvat_classes(path), partial(_read_cvat, path))
    if path.is_dir():
        return Source({}, partial(_read_labelme, sorted(path.rglob("*.json"))))
    content = _load(path)
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
        categories = sorted((each["id"], str(each["name"])) for each in content["categories"])
        names = dict(categories)
        return Source(dict.fromkeys(names.values(), ""), partial(_read_coco, content, names))
    if isinstance(content, list) and all({"annotations", "data"} <= {*task} for task in content):
        return Source({}, partial(_read_label_studio, content))
    if isinstance(content, dict) and "shapes" in content:
        return Source({}, partial(_read_labelme, [path]))
    raise UserError(f"{path}: not COCO, Labelme or Label Studio's full JSON; export one of them")


# -- JSON ----------------------------------------------------------------------------------


def _load(path: Path) -> Any:
    with path.open(encoding="utf-8-sig") as file:
        return json.load(file, object_hook=_pack)


def _pack(fields: dict[str, Any]) -> Any:
    """Return an object of a JSON file with its numbers in arrays: a tenth of the memory."""
    fields.pop("imageData", None)  # Labelme's copy of the image
    for key, kind in _TYPES.items():
        if isinstance(numbers := fields.get(key), list):
            pairs = numbers if key == "points" else [numbers]
            fields[key] = array(kind, [number for pair in pairs for number in pair])
    if isinstance(parts := fields.get("segmentation"), list):
        fields["segmentation"] = [array("f", part) for part in parts]
        return {key: fields[key] for key in _COCO_KEYS if key in fields}
    return fields


def _read_coco(content: Any, names: Mapping[int, str]) -> Iterator[AnnotatedImage]:
    """Yield the images of a COCO file; crowds come before the objects in them."""
    images = {
        each["id"]: AnnotatedImage(each["file_name"], (each["height"], each["width"]))
        for each in content["images"]
    }
    for each in sorted(content["annotations"], key=lambda each: -each.get("iscrowd", 0)):
        for key, known in (("category_id", names), ("image_id", images)):
            if each[key] not in known:
                listed = "categories" if key == "category_id" else "images"
                raise ValueError(f"annotation {each['id']}: {key} {each[key]} is not in {listed}")
        image, outline = images[each["image_id"]], each.get("segmentation")
        if not outline:
            image.skipped += 1
            continue
        draw = regions.draw_runs if isinstance(outline, dict) else fill
        is_crowd = bool(each.get("iscrowd"))
        image.add(names[each["category_id"]], draw, outline, is_crowd=is_crowd)
    yield from images.values()


def _read_labelme(files: Sequence[Path]) -> Iterator[AnnotatedImage]:
    for path in files:
        with as_user_error(path):
            image = _parse_labelme(path)
        yield image


def _parse_labelme(path: Path) -> AnnotatedImage:
    """Return the objects in a file of Labelme; polygons of one label and group are one object."""
    content = _load(path)
    if not (isinstance(content, dict) and "shapes" in content):
        raise UserError(f"{path}: not a file of Labelme; move it elsewhere")
    image = AnnotatedImage(content["imagePath"], (content["imageHeight"], content["imageWidth"]))
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for number, shape in enumerate(content["shapes"]):
        label, kind, group = shape["label"], shape.get("shape_type"), shape.get("group_id")
        if kind == "mask":
            image.add(label, _draw_picture, shape["mask"], shape["points"])
        elif kind in (None, "polygon", "oriented_rectangle"):
            key = (label, group) if group is not None else (label, None, number)
            if key not in groups:
                groups[key] = []
                image.add(label, fill, groups[key])
            groups[key].append(shape["points"])
        else:
            image.skipped += 1
    return image


def _draw_picture(encoded: str, corners: Sequence[float], size: Size) -> Patch:
    with identify(io.BytesIO(base64.b64decode(encoded))) as picture:
        if picture.width > size[1] or picture.height > size[0]:
            raise ValueError("a mask that is larger than its image")
        return paste(np.asarray(picture).astype(bool), round(corners[0]), round(corners[1]), size)


def _read_label_studio(tasks: Sequence[Mapping[str, Any]]) -> Iterator[AnnotatedImage]:
    """Yield the images of an export, of each the first annotation that was not cancelled."""
    for task in tasks:
        done = [each for each in task["annotations"] if not each.get("was_cancelled")]
        if not done:
            continue
        image = AnnotatedImage(_find_name(task["data"], done[0]["result"]), None)
        regions: dict[Any, list[Mapping[str, Any]]] = {}  # a shape and its label may lie apart
        for number, result in enumerate(done[0]["result"]):
            regions.setdefault(result.get("id", number), []).append(result)
        for parts in regions.values():
            _add_region(image, parts)
        yield image


def _find_name(data: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a task that names its image: the results say it, or it ends like one."""
    named = [data[each["to_name"]] for each in results if each.get("to_name") in data]
    texts = [value for value in named or data.values() if isinstance(value, str)]
    suffixes = "|".join(map(re.escape, list_suffixes()))
    texts.sort(key=lambda text: not re.search(rf"({suffixes})(\?|$)", text, re.IGNORECASE))
    if not texts:
        raise ValueError("a task of several images, or of none; give each image a task")
    return texts[0]


def _add_region(image: AnnotatedImage, parts: Sequence[Mapping[str, Any]]) -> None:
    """Add the object that results of one region describe."""
    if any(part.get("image_rotation") for part in parts):
        raise ValueError(f"{image.name}: annotated on a turned image")
    shape = next((each for each in parts if {"rle", "points"} & each.get("value", {}).keys()), None)
    if shape is None:
        image.skipped += any("original_width" in part for part in parts)
        return
    named = [part for part in parts if part.get("type", "").endswith("labels")]
    labels = [label for part in named for label in part["value"][part["type"]]]
    if not labels:
        raise ValueError(f"image {image.name}: a shape without a label; give it one")
    image.size = int(shape["original_height"]), int(shape["original_width"])
    value = shape["value"]
    if "rle" in value:
        image.add(labels[0], regions.draw_brush, bytes(value["rle"]))
    else:
        image.add(labels[0], regions.fill_shares, value["points"], 100)


# -- CVAT ----------------------------------------------------------------------------------


def _list_cvat_classes(path: Path) -> dict[str, str]:
    """Return the labels of an export and their colours; refuse other XML."""

    def refuse(*_: Any) -> None:
        raise ValueError("a DOCTYPE, which may define entities, and CVAT writes none")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    with path.open("rb") as file:
        parser.ParseFile(file)
    classes: dict[str, str] = {}
    for _, element in iterparse(path):
        if element.tag == "label" and element.find("name") is not None:
            classes[element.findtext("name", "")] = element.findtext("color", "")
        if element.tag == "track" or (element.tag == "version" and element.text != "1.1"):
            break
        if element.tag == "image":
            return classes
    raise UserError(f"{path}: not an export of CVAT; use the format 'CVAT for images 1.1'")


def _read_cvat(path: Path) -> Iterator[AnnotatedImage]:
    """Yield the images of an export, the shapes of each from the lowest to the highest z-order."""
    root = None
    for event, element in iterparse(path, ("start", "end")):
        root = element if root is None else root
        if event == "start" or element.tag != "image":
            continue
        size = int(element.attrib["height"]), int(element.attrib["width"])
        image = AnnotatedImage(element.attrib["name"], size)
        for shape in sorted(element, key=lambda shape: int(shape.get("z_order", 0))):
            if shape.tag in ("polygon", "mask"):
                image.add(shape.attrib["label"], _draw_shape, dict(shape.attrib))
            elif shape.tag != "tag":
                image.skipped += 1
        root.clear()
        yield image


def _draw_shape(fields: Mapping[str, str], size: Size) -> Patch:
    if "points" in fields:
        return fill([[pair.split(",") for pair in fields["points"].split(";")]], size)
    left, top, width, height = (int(fields[key]) for key in ("left", "top", "width", "height"))
    if not (0 < width <= size[1] and 0 < height <= size[0]):
        raise ValueError(f"a mask of {width}x{height} pixels")
    counts = [int(count) for count in fields["rle"].split(",")]
    return paste(regions.decode_runs(counts, (height, width)), left, top, size)


# -- YOLO ----------------------------------------------------------------------------------


def _open_yolo(path: Path, images: Mapping[str, Path]) -> Source:
    names: Any = read_settings(path).get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict):
        raise UserError(f"{path}: has no names of classes; use the data.yaml of the data set")
    classes = {int(number): str(name) for number, name in names.items()}
    files = {name: _find_labels(path, name, image) for name, image in images.items()}
    if not any(files.values()):
        raise UserError(f"{path}: found no labels/*.txt of any image; keep them next to it")
    return Source(dict.fromkeys(classes.values(), ""), partial(_read_yolo, files, images, classes))


def _find_labels(path: Path, name: str, image: Path) -> Path | None:
    """Return the labels of an image: for images/a.jpg labels/a.txt, or else in labels/ by `path`."""
    before, separator, after = f"/{image.with_suffix('.txt')}".rpartition("/images/")
    beside = Path(f"{before}/labels/{after}"[1:]) if separator else image.with_suffix(".txt")
    found = (file for file in (beside, path.parent / "labels" / f"{name}.txt") if file.exists())
    return next(found, None)


def _read_yolo(
    files: Mapping[str, Path | None], images: Mapping[str, Path], classes: Mapping[int, str]
) -> Iterator[AnnotatedImage]:
    for name, path in files.items():
        if path is None:
            continue
        image = AnnotatedImage(name + images[name].suffix, None)
        with as_user_error(path):
            rows = [[*map(float, line.split())] for line in path.read_text().splitlines()]
        for number, *points in filter(None, rows):
            if len(points) == 4:
                image.skipped += 1
                continue
            if number not in classes:
                raise UserError(f"{path}: class {number:g} is not in the names of data.yaml")
            image.add(classes[int(number)], regions.fill_shares, points, 1)
        yield image
