"""Images in the order in which to label them: those that the network is least sure of first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import numpy as np

from unet_ddp.data.cells import format_row
from unet_ddp.data.formats.read import read_thumbnail
from unet_ddp.prediction.outputs.shards import ListFile, read_shards
from unet_ddp.prediction.prediction import Prediction, allocate
from unet_ddp.storage import local_file

_SIDE = 8  # pixels of a thumbnail
_NEARLY_EQUAL = 0.995  # correlation of two thumbnails, as the doctor has it for copies


class RankFile(ListFile):
    """The CSV file of all images; a line is JSON: uncertainty, path and thumbnail."""

    def write_lines(self, file: IO[bytes], size: int) -> None:
        """Write the images of all processes in order, those nearly equal to an earlier one last."""
        rows = [json.loads(line) for line in read_shards(self.path, size)]
        rows.sort(key=lambda row: (-row[0], row[1]))
        kept = np.empty((len(rows), _SIDE**2), np.float32)
        paths: list[str] = []
        late: list[tuple[str, str, str]] = []
        for uncertainty, path, thumbnail in rows:
            values = np.array(thumbnail, np.float32)
            values -= values.mean()
            values /= np.linalg.norm(values) or 1
            likeness = kept[: len(paths)] @ values
            if likeness.max(initial=0) > _NEARLY_EQUAL:
                late.append((path, f"{uncertainty:.4f}", paths[int(likeness.argmax())]))
                continue
            kept[len(paths)] = values
            paths.append(path)
            file.write(b"\n" + _encode((path, f"{uncertainty:.4f}", "")))
        for row in late:
            file.write(b"\n" + _encode(row))


def _encode(row: tuple[str, ...]) -> bytes:
    return format_row(row).encode("utf-8", "surrogateescape")


def rank_file(path: Path) -> ListFile:
    """Return the CSV file of all images in the order in which to label them."""
    return RankFile(path, lambda *_: "", header=b"image,uncertainty,nearly_equal_to")


def format_rank(image: Path, prediction: Prediction) -> str:
    """Return the line of an image."""
    with local_file(image) as file:
        thumbnail = read_thumbnail(file, _SIDE).ravel().tolist()
    return json.dumps([measure_uncertainty(prediction), str(image), thumbnail])


def measure_uncertainty(prediction: Prediction) -> float:
    """Return the mean entropy of the pixels at predicted outlines, 0 to 1; without one, of all pixels.

    Of several networks or transformed copies it is the entropy of their mean probabilities, which
    grows with their disagreement.
    """
    import cv2

    entropy = allocate(prediction.size, np.float32)
    for top, band in prediction.probability_bands():
        logarithms = np.log(band, out=np.zeros_like(band), where=band > 0)
        entropy[top : top + band.shape[1]] = -(band * logarithms).sum(axis=0) / np.log(len(band))
    window = np.ones((3, 3), np.uint8)
    is_outline = cv2.dilate(prediction.ids, window) != cv2.erode(prediction.ids, window)
    return float(entropy[is_outline].mean() if is_outline.any() else entropy.mean())
