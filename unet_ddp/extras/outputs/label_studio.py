"""Predictions as tasks of Label Studio, whose brush corrects them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import numpy as np
from scipy.ndimage import find_objects

from unet_ddp.data.masks import Flags, Size
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.files import is_address
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction

_LOCAL_FILES = (
    "/data/local-files/?d="  # before the path of an image that Label Studio serves itself
)
_WIDTHS = (3, 4, 8, 16)  # bits of the lengths of runs
_MOST_PIXELS = (1 << 32) // 4 - 1  # of which each has four values, counted with 32 bits


class LabelStudioFile(Output):
    """The JSON file of the tasks: each image, and a brush region for each class or numbered object."""

    path_setting = "label_studio"
    header, separator, footer = "[", ",", "]\n"

    def check(self, images: Mapping[Source, bool]) -> None:
        """Refuse another name than .json, by which Label Studio knows the file."""
        if not str(self.path).lower().endswith(".json"):
            raise UserError(f"--label-studio {self.path}: the name must end in .json")

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return the task of an image."""
        height, width = prediction.size
        if height * width > _MOST_PIXELS:
            raise UserError(
                f"{image.image}: {width}x{height}, Label Studio's brush has at most {_MOST_PIXELS} "
                "pixels; cut the image"
            )
        results = []
        for number, (name, pixels, corner) in enumerate(_find_regions(prediction), start=1):
            brush = pack_brush(pixels, prediction.size, corner)
            region = {
                "id": f"region{number}",
                "from_name": "tag",
                "to_name": "image",
                "type": "brushlabels",
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "value": {"format": "rle", "rle": brush, "brushlabels": [name]},
            }
            results.append(region)
        task = {
            "data": {"image": locate(image.image)},
            "predictions": [{"model_version": "unet_ddp", "result": results}],
        }
        return json.dumps(task)


def locate(path: Path) -> str:
    """Return the URL at which Label Studio has an image: its address, or one of the local files."""
    if is_address(path):
        return str(path)
    here = Path.cwd()
    if path.is_absolute() and path.is_relative_to(here):
        path = path.relative_to(here)
    return _LOCAL_FILES + quote(os.fsencode(path.as_posix().lstrip("/")))


def _find_regions(prediction: Prediction) -> Iterator[tuple[str, Flags, tuple[int, int]]]:
    """Yield the class of each region, its pixels in the window around it, and the window's first row and column."""
    labels = prediction.labels
    for regions in labels.regions(prediction.mask):
        parts = regions.values if regions.are_numbers else regions.ids
        known = np.unique(parts[regions.counted])
        numbers = np.where(regions.counted, np.searchsorted(known, parts) + 1, 0)
        for number, window in enumerate(find_objects(numbers), start=1):
            pixels = numbers[window] == number
            k = int(regions.ids[window][pixels][0])
            if k in labels.foreground:
                yield labels.class_names[k], pixels, (window[0].start, window[1].start)


def pack_brush(
    pixels: Flags, size: Size | None = None, corner: tuple[int, int] = (0, 0)
) -> list[int]:
    """Return a region as the bytes of Label Studio's brush: RGBA, packed as @thi.ng/rle-pack does.

    The four values of a pixel are 255 inside the region, or 0. `pixels` are the window of an image of
    `size` that begins at row and column `corner`, or the whole image.
    """
    height, width = size or pixels.shape
    changes = np.flatnonzero(np.diff(np.pad(pixels, ((0, 0), (1, 1))), axis=1))
    rows, columns = np.divmod(changes, pixels.shape[1] + 1)
    edges, counts = np.unique((rows + corner[0]) * width + columns + corner[1], return_counts=True)
    edges = edges[counts == 1]  # not where a row goes on in the next one
    bits = [f"{4 * height * width:032b}", "00111"]  # the values, and their 8 bits less one
    bits += [f"{each - 1:04b}" for each in _WIDTHS]
    for inside, (start, end) in enumerate(pairwise([0, *edges.tolist(), height * width])):
        bits.append(_pack_run(4 * (end - start), "11111111" if inside % 2 else "00000000"))
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return list(int(text, 2).to_bytes(len(text) // 8, "big"))


def _pack_run(length: int, value: str) -> str:
    longest, rest = divmod(length, 1 << _WIDTHS[-1])
    bits = f"1{len(_WIDTHS) - 1:02b}{'1' * _WIDTHS[-1]}{value}" * longest
    if rest:
        place = next(n for n, width in enumerate(_WIDTHS) if rest <= 1 << width)
        bits += f"1{place:02b}{rest - 1:0{_WIDTHS[place]}b}{value}"
    return bits
