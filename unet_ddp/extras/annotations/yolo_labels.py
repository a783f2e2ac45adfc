"""Annotations of YOLO segmentation: data.yaml, and a text file for each image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from unet_ddp.cli.recipes import read_settings
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.regions import fill_shares


def open_yolo(path: Path, images: Mapping[str, Path]) -> AnnotationSet:
    """Return the annotations of the images that have a file of labels."""
    names: Any = read_settings(path).get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict):
        raise UserError(f"{path}: has no names of classes; use the data.yaml of the data set")
    classes = {int(number): str(name) for number, name in names.items()}
    files: dict[str, Path] = {}  # by the image's name with its suffix
    for name, image in images.items():
        labels = _find_labels(path, name, image)
        if labels is not None:
            files[name + image.suffix] = labels
    if not files:
        raise UserError(f"{path}: found no labels/*.txt of any image; keep them next to it")
    return AnnotationSet(dict.fromkeys(classes.values(), ""), partial(_read_yolo, files, classes))


def _find_labels(path: Path, name: str, image: Path) -> Path | None:
    """Return the labels of an image: for images/a.jpg labels/a.txt, or else in labels/ by `path`."""
    beside = image.with_suffix(".txt")
    before, separator, after = f"/{beside}".rpartition("/images/")
    if separator:
        beside = Path(f"{before}/labels/{after}"[1:])
    for file in (beside, path.parent / "labels" / f"{name}.txt"):
        if file.exists():
            return file
    return None


def _read_yolo(files: Mapping[str, Path], classes: Mapping[int, str]) -> Iterator[AnnotatedImage]:
    for name, path in files.items():
        image = AnnotatedImage(name, None)
        with as_user_error(path):
            rows = [[*map(float, line.split())] for line in path.read_text().splitlines()]
        for number, *points in filter(None, rows):
            if len(points) == 4:
                image.skipped += 1
                continue
            if number not in classes:
                raise UserError(f"{path}: class {number:g} is not in the names of data.yaml")
            image.add(classes[int(number)], fill_shares, points, 1)
        yield image
