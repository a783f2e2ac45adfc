"""Annotations in the format 'CVAT for images 1.1'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import iterparse
from xml.parsers import expat

from unet_ddp.data.masks import Size
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage
from unet_ddp.extras.annotations.fields import Fields, to_numbers, to_points
from unet_ddp.extras.annotations.regions import Patch, decode_runs, fill, paste
from unet_ddp.files.contents import advise_on, describe_content


def list_labels(path: Path) -> dict[str, str]:
    """Return the labels of an export and their colours; refuse other XML."""

    def refuse(*_: Any) -> None:
        raise UserError(f"{path}: a DOCTYPE, which may define entities, and CVAT writes none")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    kind = describe_content(path)
    if kind not in ("an XML file", "UTF-16 text"):
        advice = advise_on(kind, "use the format 'CVAT for images 1.1'")
        raise UserError(f"{path}: is {kind}, not an export of CVAT; {advice}")
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except (expat.ExpatError, LookupError) as error:
        line = getattr(error, "lineno", 1)
        reason = str(error).partition(":")[0]
        raise UserError(f"{path}: broken XML at line {line} ({reason}); export it again") from None
    classes: dict[str, str] = {}
    for _, element in iterparse(path):
        if element.tag == "image":
            return classes
        if element.tag == "label" and element.find("name") is not None:
            classes[element.findtext("name", "")] = element.findtext("color", "")
        if element.tag == "track":
            raise UserError(f"{path}: CVAT for video; use the format 'CVAT for images 1.1'")
        if element.tag == "version" and element.text != "1.1":
            break
    raise UserError(
        f"{path}: not an export of CVAT; use the format 'CVAT for images 1.1'; of Pascal VOC, train on the masks in "
        "SegmentationClass"
    )


def read_cvat(path: Path) -> Iterator[AnnotatedImage]:
    """Yield the images of an export, the shapes of each from the lowest to the highest z-order."""
    events = iterparse(path, ("start", "end"))
    _, root = next(events)
    for event, element in events:
        if event == "start" or element.tag != "image":
            continue
        fields = Fields(element.attrib, f"image {element.get('name', 'without name')}")
        image = AnnotatedImage(fields.text("name"), fields.size("height", "width"))
        shapes = [Fields(shape.attrib | {"tag": shape.tag}, shape.tag) for shape in element]
        for shape in sorted(shapes, key=_z_order):
            if shape.get("tag") in ("polygon", "mask"):
                where = f"a {shape.where} of {shape.text('label')}"
                image.add(shape.text("label"), _draw_shape, shape, where=where)
            elif shape.get("tag") != "tag":
                image.skipped += 1
        root.clear()
        yield image


def _z_order(shape: Fields) -> int:
    return shape.whole("z_order") if shape.has("z_order") else 0


def _draw_shape(fields: Fields, size: Size) -> Patch:
    if fields.has("points"):
        points = [pair.split(",") for pair in fields.text("points").split(";")]
        return fill([to_points(points, "points")], size)
    left, top = fields.whole("left"), fields.whole("top")
    width, height = fields.whole("width"), fields.whole("height")
    if not (0 < width <= size[1] and 0 < height <= size[0]):
        raise UserError(f"a mask of {width}x{height} pixels")
    counts = to_numbers(fields.text("rle").split(","), "rle")
    return paste(decode_runs(counts, (height, width)), left, top, size)
