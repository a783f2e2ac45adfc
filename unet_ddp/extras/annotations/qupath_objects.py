"""GeoJSON of QuPath: a file of an image's objects, in its pixels. The image has the file's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from unet_ddp.data.readers.read import can_read
from unet_ddp.errors import UserError, count_of
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.fields import Fields
from unet_ddp.extras.annotations.json_files import AREAS, load_json
from unet_ddp.extras.annotations.regions import fill_each

_ONLY_CLASS = "object"
_Objects = list[
    tuple[str, Fields]
]  # of a file, each with the name of its class, which may be empty


def list_features(content: Any) -> list[Any] | None:
    """Return the objects in a file's content; None if it is no GeoJSON."""
    if isinstance(content, dict) and content.get("type") == "FeatureCollection":
        content = content.get("features")
    elif isinstance(content, dict):
        content = [content]
    is_feature = isinstance(content, list) and all(
        isinstance(each, dict) and each.get("type") == "Feature" for each in content
    )
    return content if is_feature else None


def open_qupath(files: Sequence[Path]) -> AnnotationSet:
    """Return the objects of the images that files are named after.

    Objects without a class are left out: so are the regions in which QuPath looks for others. If no object
    of any file has a class, all are of one.
    """
    found = {path: _read_objects(path) for path in files}
    labels = [label for objects in found.values() for label, _ in objects]
    if not any(labels):
        return AnnotationSet({}, partial(_list_images, found, _ONLY_CLASS))
    count = labels.count("")
    notes = [f"{count_of(count, 'object')} without a class: left out"] if count else []
    return AnnotationSet({}, partial(_list_images, found, None), notes)


def _list_images(found: Mapping[Path, _Objects], unnamed: str | None) -> Iterator[AnnotatedImage]:
    """Yield the image of each file; objects without a class are `unnamed`, or are left out."""
    for path, objects in found.items():
        is_named = can_read(Path(path.stem).suffix.lower())  # x.tif.geojson, or x.geojson
        image = AnnotatedImage(str(path.with_name(path.stem) if is_named else path), None)
        for name, each in objects:
            parts = [*_list_parts(each.fields("geometry"))] if each.has("geometry") else []
            label = name or unnamed
            if label and parts:
                image.add(label, fill_each, parts, where=each.where)
            elif label:
                image.skipped += 1
        yield image


def _read_objects(path: Path) -> _Objects:
    content = load_json(path)
    features = list_features(content)
    if features is None:
        raise UserError(f"{path}: not GeoJSON with features; export it again from QuPath")
    if isinstance(content, dict) and "crs" in content:
        raise UserError(
            f"{path}: GeoJSON of a map (it has a crs), not of an image's pixels; train.py reads it itself: --masks "
            f"{quote(str(path))} --class-field NAME"
        )
    file = Fields({"features": features}, str(path))
    return [(_find_class(each), each) for each in file.rows("features", "object")]


def _find_class(each: Fields) -> str:
    if not each.has("properties") or not each.fields("properties").has("classification"):
        return ""
    given = each.fields("properties")
    if isinstance(given.values["classification"], str):
        return given.text("classification")
    found = given.fields("classification")
    if found.has("names"):  # of a class with parts, as Tumor: Positive
        names = found.get("names")
        return ": ".join(map(str, names)) if isinstance(names, list) else found.text("names")
    return found.text("name")


def _list_parts(geometry: Fields) -> Iterator[list[Any]]:
    """Yield the outlines of each part of an object and of its holes; none of a line or a point.

    Raises:
        UserError: they are no outlines.
    """
    if geometry.text("type") == "GeometryCollection":
        for part in geometry.rows("geometries", "geometry"):
            yield from _list_parts(part)
    if geometry.text("type") not in AREAS:
        return
    rings = geometry.get("coordinates")
    if not isinstance(rings, list) or not all(isinstance(ring, np.ndarray) for ring in rings):
        raise geometry.refuse("coordinates", "rings of points")
    if found := [ring for ring in rings if len(ring) > 2]:
        yield found
