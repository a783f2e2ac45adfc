"""Files of annotation tools, by what they contain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from unet_ddp.data.names import is_hidden
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.annotated_image import AnnotationSet
from unet_ddp.extras.annotations.cvat_images import list_labels, read_cvat
from unet_ddp.extras.annotations.imagej_rois import list_rois, open_rois
from unet_ddp.extras.annotations.json_files import load_json, open_coco, read_labelme
from unet_ddp.extras.annotations.label_studio_tasks import read_label_studio
from unet_ddp.extras.annotations.qupath_objects import list_features, open_qupath
from unet_ddp.extras.annotations.run_length_tables import open_run_lengths
from unet_ddp.extras.annotations.yolo_labels import open_yolo
from unet_ddp.files import refuse_special
from unet_ddp.files.contents import describe_content

_TOOLS = (  # the fields by which the files of other tools are known
    ({"size", "objects"}, "Supervisely (there, export COCO or masks)"),
    ({"item", "annotations"}, "Darwin V7 (there, export COCO)"),
    ({"filename", "regions"}, "the VGG annotator (there, export COCO)"),
    ({"_via_img_metadata"}, "the VGG annotator (there, export COCO)"),
    ({"id", "image"}, "Label Studio's JSON-MIN (there, export JSON)"),
    ({"media_type", "items"}, "Datumaro (there, export COCO)"),
    ({"categories", "items"}, "Datumaro (there, export COCO)"),
    ({"imgHeight", "objects"}, "Cityscapes (train on its masks, x_labelIds.png)"),
    (
        {"image_id", "category_id", "score"},
        "predictions for COCO (give the file with images and categories)",
    ),
)


def list_json(folder: Path, pattern: str = "*.json") -> list[Path]:
    """Return the JSON files below a folder, but hidden ones."""
    files = sorted(folder.rglob(pattern))
    return [file for file in files if not any(map(is_hidden, file.relative_to(folder).parts))]


list_geojson = partial(list_json, pattern="*.geojson")


def open_annotations(
    path: Path, images: Mapping[str, Path], rle_order: str | None = None
) -> AnnotationSet:
    """Return the annotations of `images`, by name without suffix, in a file or a folder.

    `rle_order` is that of the pixels in a table of run lengths, None for the usual one of its columns.
    """
    refuse_special(path)
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return open_yolo(path, images)
    if rois := list_rois(path):
        return open_rois(rois)
    kind = "" if path.is_dir() else describe_content(path)
    if suffix in (".csv", ".tsv") or (kind == "a CSV file" and suffix != ".json"):
        return open_run_lengths(path, images, rle_order)
    if suffix == ".xml" or kind == "an XML file":
        return AnnotationSet(list_labels(path), partial(read_cvat, path))
    if path.is_dir():
        if not (files := list_json(path)):
            return open_qupath(list_geojson(path))
        return AnnotationSet({}, partial(read_labelme, files, images))
    content = load_json(path)
    if content and list_features(content) is not None:
        return open_qupath([path])
    if isinstance(content, list):
        if all(isinstance(task, dict) and {"annotations", "data"} <= {*task} for task in content):
            return AnnotationSet({}, partial(read_label_studio, content))
    elif isinstance(content, dict):
        if {"images", "annotations", "categories"} <= content.keys():
            return open_coco(content)
        if "shapes" in content:
            return AnnotationSet({}, partial(read_labelme, [path], images))
        if {"images", "annotations"} <= content.keys():
            raise UserError(
                f"{path}: COCO without categories, which name the classes; export the file with them"
            )
    raise UserError(
        f"{path}: {_name_tool(content)}not COCO, Labelme, QuPath or Label Studio's full JSON; export one of them"
    )


def _name_tool(content: Any) -> str:
    """Return what other tool wrote a file of JSON, and which of its exports is read; nothing if that is not known."""
    # Of a list the first item is looked at. VIA's fields have no fixed names: they are one level deeper.
    first = content
    for _ in range(2):
        if isinstance(first, list):
            first = first[0] if first else None
        if isinstance(first, dict):
            for fields, tool in _TOOLS:
                if fields <= first.keys():
                    return f"of {tool}, "
            first = next(iter(first.values()), None)
    return ""
