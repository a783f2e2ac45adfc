"""Predictions as tasks of Label Studio, whose brush corrects them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np

from unet_ddp.data.masks import Flags
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
        for number, (name, pixels) in enumerate(_find_regions(prediction), start=1):
            region = {
                "id": f"region{number}",
                "from_name": "tag",
                "to_name": "image",
                "type": "brushlabels",
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "value": {"format": "rle", "rle": pack_brush(pixels), "brushlabels": [name]},
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


def _find_regions(prediction: Prediction) -> Iterator[tuple[str, Flags]]:
    """Yield the class and the pixels (H, W) of each region."""
    labels = prediction.labels
    for regions in labels.regions(prediction.mask):
        parts = regions.values if regions.are_numbers else regions.ids
        for part in np.unique(parts[regions.counted]):
            pixels = (parts == part) & regions.counted
            k = int(regions.ids[pixels][0])
            if k in labels.foreground:
                yield labels.class_names[k], pixels


def pack_brush(pixels: Flags) -> list[int]:
    """Return a region (H, W) as the bytes of Label Studio's brush: RGBA, packed as @thi.ng/rle-pack does.

    The four values of a pixel are 255 inside the region, or 0.
    """
    flat = pixels.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=~flat[:1]))
    lengths = 4 * np.diff(starts, append=flat.size)
    bits = [f"{4 * flat.size:032b}", "00111"]  # the values, and their 8 bits less one
    bits += [f"{width - 1:04b}" for width in _WIDTHS]
    longest = 1 << _WIDTHS[-1]
    for is_inside, length in zip(flat[starts].tolist(), lengths.tolist(), strict=True):
        value = "11111111" if is_inside else "00000000"
        while length > 0:
            count = min(length, longest)
            place = next(n for n, width in enumerate(_WIDTHS) if count <= 1 << width)
            bits.append(f"1{place:02b}{count - 1:0{_WIDTHS[place]}b}{value}")
            length -= count
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return list(int(text, 2).to_bytes(len(text) // 8, "big"))
