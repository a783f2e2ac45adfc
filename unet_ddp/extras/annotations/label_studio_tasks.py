"""Annotations in Label Studio's full JSON: a list of tasks, each of an image."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unet_ddp.data.readers.read import list_suffixes
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage
from unet_ddp.extras.annotations.fields import Fields, to_points
from unet_ddp.extras.annotations.regions import draw_brush, fill_shares

_SHAPES = {"rle", "points"}  # keys of a brush and a polygon
_UNREAD = {"imageDataURL": "bitmask", "vertices": "vector"}  # keys of areas of other tools


def read_label_studio(tasks: Sequence[Any]) -> Iterator[AnnotatedImage]:
    """Yield the images of an export, of each the first annotation that was not cancelled."""
    for number, content in enumerate(tasks, start=1):
        task = Fields(content, f"task {number}")
        made = task.rows("annotations", "annotation")
        done = next((each for each in made if not each.values.get("was_cancelled")), None)
        if done is None:
            continue
        results = [*done.rows("result", "result")]
        image = AnnotatedImage(_find_name(task.fields("data"), results), None)
        regions: dict[str, list[Fields]] = {}  # a shape and its label may lie apart
        for place, result in enumerate(results):
            key = result.key("id") if result.has("id") else f"no. {place}"
            regions.setdefault(key, []).append(result)
        for parts in regions.values():
            _add_region(image, parts)
        yield image


def _find_name(data: Fields, results: Sequence[Fields]) -> str:
    """Return the text of a task that names its image: the results say it, or it ends like one."""
    fields = [each.text("to_name") for each in results if each.has("to_name")]
    named = [data.values[field] for field in fields if field in data.values]
    texts = [value for value in named or data.values.values() if isinstance(value, str)]
    if not texts:
        raise UserError(
            f"{data.where}: a task of several images, or of none; give each image a task"
        )
    suffixes = "|".join(map(re.escape, list_suffixes()))
    ending = re.compile(rf"({suffixes})(\?|$)", re.IGNORECASE)
    return next(filter(ending.search, texts), texts[0])


def _value_of(part: Fields) -> Mapping[str, Any]:
    return part.fields("value").values if part.has("value") else {}


def _add_region(image: AnnotatedImage, parts: Sequence[Fields]) -> None:
    """Add the object that results of one region describe, once for each of its labels."""
    if any(part.values.get("image_rotation") for part in parts):
        raise UserError(f"image {image.name}: annotated on a turned image; turn the file instead")
    values = [*map(_value_of, parts)]
    for key, tool in _UNREAD.items():
        if any(key in value and value.get("closed", True) for value in values):
            raise UserError(
                f"image {image.name}: an area of Label Studio's {tool} tool, which is not read; draw it with the brush or as "
                "polygon"
            )
    shape = next((part for part in parts if not _SHAPES.isdisjoint(_value_of(part))), None)
    if shape is None:
        if any(part.has("original_width") for part in parts):  # a box or an ellipse
            image.skipped += 1
        return
    labels: list[str] = []
    for part in parts:
        kind = part.text("type") if part.has("type") else ""
        if kind.endswith("labels"):
            labels += _labels_of(part.fields("value"), kind)
    if not labels:
        raise UserError(f"image {image.name}: a shape without a label; give it one")
    image.size = shape.size("original_height", "original_width") or image.size
    value = shape.fields("value")
    outline: tuple[Any, ...] = ()
    if value.has("rle"):
        outline = draw_brush, _to_bytes(value)
    else:
        points = to_points(value.get("points"), f"{shape.where}: points")
        if len(points) < 3:
            image.skipped += 1
            return
        outline = fill_shares, points, 100
    classes = list(dict.fromkeys(labels))
    image.several += len(classes) > 1
    for label in classes[::-1]:  # the first one is above
        image.add(label, *outline, where=shape.where)


def _labels_of(value: Fields, kind: str) -> list[str]:
    labels = value.get(kind)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise value.refuse(kind, "a list of labels")
    return labels


def _to_bytes(value: Fields) -> bytes:
    numbers = value.get("rle")
    try:
        if isinstance(numbers, (list, array)):
            return bytes(numbers)
    except (TypeError, ValueError):
        pass
    raise value.refuse("rle", "a list of numbers from 0 to 255")
