"""Annotations in Label Studio's full JSON: a list of tasks, each of an image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unet_ddp.data.readers.read import list_suffixes
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage
from unet_ddp.extras.annotations.regions import draw_brush, fill_shares

Fields = Mapping[str, Any]

_SHAPES = {"rle", "points"}  # keys of a brush and a polygon


def read_label_studio(tasks: Sequence[Fields]) -> Iterator[AnnotatedImage]:
    """Yield the images of an export, of each the first annotation that was not cancelled."""
    for task in tasks:
        done = [each for each in task["annotations"] if not each.get("was_cancelled")]
        if not done:
            continue
        results = done[0]["result"]
        image = AnnotatedImage(_find_name(task["data"], results), None)
        regions: dict[Any, list[Fields]] = {}  # a shape and its label may lie apart
        for number, result in enumerate(results):
            regions.setdefault(result.get("id", number), []).append(result)
        for parts in regions.values():
            _add_region(image, parts)
        yield image


def _find_name(data: Fields, results: Sequence[Fields]) -> str:
    """Return the text of a task that names its image: the results say it, or it ends like one."""
    named = [data[each["to_name"]] for each in results if each.get("to_name") in data]
    texts = [value for value in named or data.values() if isinstance(value, str)]
    if not texts:
        raise ValueError("a task of several images, or of none; give each image a task")
    suffixes = "|".join(map(re.escape, list_suffixes()))
    ending = re.compile(rf"({suffixes})(\?|$)", re.IGNORECASE)
    return next(filter(ending.search, texts), texts[0])


def _add_region(image: AnnotatedImage, parts: Sequence[Fields]) -> None:
    """Add the object that results of one region describe."""
    if any(part.get("image_rotation") for part in parts):
        raise ValueError(f"{image.name}: annotated on a turned image")
    shape = next((part for part in parts if not _SHAPES.isdisjoint(part.get("value", ()))), None)
    if shape is None:
        if any("original_width" in part for part in parts):  # a box or an ellipse
            image.skipped += 1
        return
    labels: list[str] = []
    for part in parts:
        kind = part.get("type", "")
        if kind.endswith("labels"):
            labels += part["value"][kind]
    if not labels:
        raise ValueError(f"image {image.name}: a shape without a label; give it one")
    image.size = int(shape["original_height"]), int(shape["original_width"])
    value = shape["value"]
    if "rle" in value:
        image.add(labels[0], draw_brush, bytes(value["rle"]))
    else:
        image.add(labels[0], fill_shares, value["points"], 100)
