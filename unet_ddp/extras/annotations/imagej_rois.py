"""ROIs of ImageJ and Fiji: the ROI manager's ZIP file of an image, or .roi files, as the package roifile reads them."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unet_ddp.data.names import is_hidden
from unet_ddp.errors import UserError, check_installed
from unet_ddp.extras.annotations.annotated_image import AnnotatedImage, AnnotationSet
from unet_ddp.extras.annotations.regions import fill_odd
from unet_ddp.files.contents import describe_content

_AREAS = ("POLYGON", "RECT", "OVAL", "FREEHAND", "TRACED")  # others are lines, points and angles
_SET = re.compile(r"^(?:roi_?sets?[_ -])?(.+?)(?:[_ -]?roi_?sets?|[_ -]rois?)?$", re.IGNORECASE)
"""a of a_RoiSet, RoiSet_a, a-rois and a."""
_ONLY_CLASS = "object"
_MOST = 1 << 28  # bytes of all ROIs of an image


def list_rois(path: Path) -> list[Path]:
    """Return the files of ROIs below a folder, or the path itself if it is a ZIP or .roi file."""
    if not path.is_dir():
        return [path] if path.suffix.lower() in (".zip", ".roi") else []
    files = [file for file in sorted(path.rglob("*")) if _holds_rois(file)]
    return [file for file in files if not any(map(is_hidden, file.relative_to(path).parts))]


def _holds_rois(file: Path) -> bool:
    suffix = file.suffix.lower()
    if suffix != ".zip" or not zipfile.is_zipfile(file):
        return suffix == ".roi"
    with zipfile.ZipFile(file) as archive:
        return any(map(_is_roi, archive.namelist()))


def _is_roi(name: str) -> bool:
    """Return whether a file in an archive is a ROI, and none of those that a Mac adds, as __MACOSX/._1.roi."""
    return name.lower().endswith(".roi") and not any(map(is_hidden, name.split("/")))


def open_rois(files: Sequence[Path]) -> AnnotationSet:
    """Return the objects of the images that files are named after: a_RoiSet.zip, RoiSet_a.zip, a.zip or a.roi.

    A group of ROIs is a class.
    """
    check_installed("roifile", "imagej", files[0])
    return AnnotationSet({}, partial(_read_sets, files))


def _read_sets(files: Sequence[Path]) -> Iterator[AnnotatedImage]:
    for path in files:
        found = _SET.match(path.stem)
        image = AnnotatedImage(str(path.with_name(found[1] if found else path.stem)), None)
        for name, data in _list_data(path):
            _add_roi(image, data, f"{path}: {name}")
        yield image


def _list_data(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the ROIs of a file, and their names in it."""
    if path.suffix.lower() == ".roi":
        yield path.name, path.read_bytes()
        return
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: is {describe_content(path)}, no ZIP file of ROIs; save it again")
    with zipfile.ZipFile(path) as archive:
        rois = [each for each in archive.infolist() if _is_roi(each.filename)]
        if not rois:
            raise UserError(
                f"{path}: contains no ROIs; save them in Fiji's ROI Manager with More > Save, or unpack the ZIP file of another tool"
            )
        size = sum(each.file_size for each in rois)
        if size > _MOST:
            raise UserError(f"{path}: {size} bytes of ROIs; at most {_MOST}")
        for each in rois:
            yield each.filename, archive.read(each)


def _add_roi(image: AnnotatedImage, data: bytes, where: str) -> None:
    import roifile

    try:
        roi: Any = roifile.ImagejRoi.frombytes(data)
        outlines = [np.asarray(each, float) for each in roi.coordinates(multi=True)]
    except Exception:  # of a damaged file
        raise UserError(f"{where}: damaged, or no ROI of ImageJ; save it again") from None
    if roi.roitype.name not in _AREAS or not any(map(len, outlines)):
        image.skipped += 1
        return
    image.add(f"group {roi.group}" if roi.group else _ONLY_CLASS, fill_odd, outlines, where=where)
