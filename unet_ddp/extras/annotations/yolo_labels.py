"""Annotations of YOLO segmentation: data.yaml, and a text file for each image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unet_ddp.cli.recipes import read_settings
from unet_ddp.data.names import find_spelling
from unet_ddp.errors import UserError, shorten
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.fields import show, to_points
from unet_ddp.extras.annotations.regions import fill_shares
from unet_ddp.extras.annotations.yolo_splits import find_split
from unet_ddp.files.contents import read_text

_BEYOND = 2  # parts of a side: farther than any outline that leaves its image
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def open_yolo(path: Path, images: Mapping[str, Path]) -> AnnotationSet:
    """Return the annotations of the images that have a file of labels."""
    settings = read_settings(path)
    if "kpt_shape" in settings:
        raise UserError(
            f"{path}: key points (kpt_shape), which are no outlines; export segmentation labels"
        )
    names: Any = settings.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict):
        raise UserError(f"{path}: has no names of classes; use the data.yaml of the data set")
    classes: dict[int, str] = {}
    for number, name in names.items():
        if not re.fullmatch(r"\d{1,9}", str(number)) or isinstance(name, (list, dict, type(None))):
            shown = show(name) if isinstance(name, (list, dict, type(None))) else shorten(str(name))
            raise UserError(
                f"{path}: names: {shorten(str(number))}: {shown}; expected the number of a class and its name"
            )
        classes[int(number)] = str(name)
    files: dict[str, Path] = {}  # by the image's name with its suffix
    for name, image in images.items():
        labels = _find_labels(path, name, image)
        if labels is not None:
            files[name + image.suffix] = labels
    if images and not files:
        beside, by = (
            folder / file for folder, file in _list_places(path, *next(iter(images.items())))
        )
        raise UserError(
            f"{path}: no image has labels, e.g. there is neither {beside} nor {by}; name or move the labels so, or put "
            "the images into images/ as the labels are in labels/"
        )
    labelled = {name for name, image in images.items() if name + image.suffix in files}
    split, notes = find_split(settings, images, labelled)
    read = partial(_read_yolo, files, classes)
    return AnnotationSet(dict.fromkeys(classes.values(), ""), read, notes, split)


def _find_labels(path: Path, name: str, image: Path) -> Path | None:
    """Return the labels of an image."""
    for folder, file in _list_places(path, name, image):
        found = folder / find_spelling(folder, file)  # accents may be in another form of Unicode
        if found.exists():
            return found
    return None


def _list_places(path: Path, name: str, image: Path) -> tuple[tuple[Path, str], ...]:
    """Return where the labels of an image may be: for images/a.jpg labels/a.txt, or else in labels/ by `path`."""
    beside = image.with_suffix(".txt")
    before, separator, after = f"/{beside}".rpartition("/images/")
    if separator:
        beside = Path(f"{before}/labels/{after}"[1:])
    return (Path(), str(beside)), (path.parent / "labels", f"{name}.txt")


def _read_yolo(files: Mapping[str, Path], classes: Mapping[int, str]) -> Iterator[AnnotatedImage]:
    for name, path in files.items():
        image = AnnotatedImage(name, None)
        text = read_text(path, "YOLO's labels", advice="export the labels again")
        for line, words in enumerate(map(str.split, text.splitlines()), start=1):
            if words:
                _add_row(image, classes, words, f"{path}, line {line}")
        yield image


def _add_row(
    image: AnnotatedImage, classes: Mapping[int, str], words: Sequence[str], where: str
) -> None:
    """Add the object of a line: the number of its class, and x y x y and so on in parts of the sides."""
    odd = next((word for word in words if not _NUMBER.fullmatch(word)), None)
    if odd is not None:
        raise UserError(f"{where}: {shorten(odd)} is no number; export the labels again")
    number, *points = map(float, words)
    if number not in classes:
        raise UserError(f"{where}: class {number:g} is not in the names of data.yaml")
    if len(points) == 4:  # a box
        image.skipped += 1
    elif len(points) < 6:
        raise UserError(f"{where}: {len(points)} numbers; expected three points or more, or a box")
    elif max(points) > _BEYOND:
        raise UserError(
            f"{where}: {max(points):g} is no part of a side, from 0 to 1, but perhaps a pixel; export the "
            "labels again, or divide x by the width and y by the height"
        )
    else:
        image.add(classes[int(number)], fill_shares, to_points(points, where), 1, where=where)
