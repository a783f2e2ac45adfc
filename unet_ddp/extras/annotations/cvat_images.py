"""Annotations in the format 'CVAT for images 1.1'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import iterparse
from xml.parsers import expat

from unet_ddp.data.masks import Size
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage
from unet_ddp.extras.annotations.regions import Patch, decode_runs, fill, paste


def list_labels(path: Path) -> dict[str, str]:
    """Return the labels of an export and their colours; refuse other XML."""

    def refuse(*_: Any) -> None:
        raise ValueError("a DOCTYPE, which may define entities, and CVAT writes none")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    with path.open("rb") as file:
        parser.ParseFile(file)
    classes: dict[str, str] = {}
    for _, element in iterparse(path):
        if element.tag == "image":
            return classes
        if element.tag == "label" and element.find("name") is not None:
            classes[element.findtext("name", "")] = element.findtext("color", "")
        if element.tag == "track" or (element.tag == "version" and element.text != "1.1"):
            break
    raise UserError(f"{path}: not an export of CVAT; use the format 'CVAT for images 1.1'")


def read_cvat(path: Path) -> Iterator[AnnotatedImage]:
    """Yield the images of an export, the shapes of each from the lowest to the highest z-order."""
    events = iterparse(path, ("start", "end"))
    _, root = next(events)
    for event, element in events:
        if event == "start" or element.tag != "image":
            continue
        size = int(element.attrib["height"]), int(element.attrib["width"])
        image = AnnotatedImage(element.attrib["name"], size)
        for shape in sorted(element, key=lambda shape: int(shape.get("z_order", 0))):
            if shape.tag in ("polygon", "mask"):
                image.add(shape.attrib["label"], _draw_shape, shape.attrib)
            elif shape.tag != "tag":
                image.skipped += 1
        root.clear()
        yield image


def _draw_shape(fields: Mapping[str, str], size: Size) -> Patch:
    if "points" in fields:
        points = [pair.split(",") for pair in fields["points"].split(";")]
        return fill([points], size)
    left, top = int(fields["left"]), int(fields["top"])
    width, height = int(fields["width"]), int(fields["height"])
    if not (0 < width <= size[1] and 0 < height <= size[0]):
        raise ValueError(f"a mask of {width}x{height} pixels")
    counts = [int(count) for count in fields["rle"].split(",")]
    return paste(decode_runs(counts, (height, width)), left, top, size)
