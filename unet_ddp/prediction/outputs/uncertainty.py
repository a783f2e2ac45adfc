"""The images that the network is least sure of, to label next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

import numpy as np

from unet_ddp.data.copies import ALIKE, THUMBNAIL, normalise
from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Band, Ids, allocate
from unet_ddp.data.readers.read import Source
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.lists import Listed, ListFile, read_shards


class RankFile(ListFile):
    """The CSV file of all images; a line is JSON: uncertainty, path and thumbnail."""

    def write_lines(self, file: IO[bytes], size: int) -> None:
        """Write the images of all processes in order, those nearly equal to an earlier one last."""
        rows = [json.loads(line) for line in filter(None, read_shards(self.path, size))]
        rows.sort(key=lambda row: (-row[0], row[1]))
        thumbnails = normalise(np.array([row[2] for row in rows]).reshape(-1, THUMBNAIL**2))
        paths: list[str] = []  # whose thumbnails are the first ones
        late: list[tuple[str, str, str]] = []
        for own, (uncertainty, path, _) in zip(thumbnails, rows, strict=True):
            likeness = thumbnails[: len(paths)] @ own
            if likeness.max(initial=0) > ALIKE:
                late.append((path, f"{uncertainty:.4f}", paths[int(likeness.argmax())]))
                continue
            thumbnails[len(paths)] = own
            paths.append(path)
            file.write(b"\n" + _encode((path, f"{uncertainty:.4f}", "")))
        for row in late:
            file.write(b"\n" + _encode(row))


def _encode(row: tuple[str, ...]) -> bytes:
    return format_row(row).encode("utf-8", "surrogateescape")


def rank_file(path: Path, labels: Labels, config: PredictConfig) -> ListFile:
    """Return the CSV file of all images in the order in which to label them."""
    return RankFile(path, format_rank, header=b"image,uncertainty,nearly_equal_to")


def format_rank(listed: Listed) -> str:
    """Return the line of an image, none if its uncertainty is not known."""
    if listed.uncertainty is None:
        return ""
    source = listed.source or Source(listed.image)
    thumbnail = source.thumbnail(THUMBNAIL).ravel().tolist()
    return json.dumps([listed.uncertainty, str(listed.image), thumbnail])


class Uncertainty:
    """Measures how sure the network is of an image of a size (height, width), from its bands."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._entropy = allocate(size, np.float32)

    def see(self, band: Band) -> None:
        """Keep the entropy of its pixels, 0 to 1."""
        shares = band.probabilities
        logarithms = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
        self._entropy[band.rows] = -(shares * logarithms).sum(axis=0) / np.log(len(shares))

    def measure(self, ids: Ids) -> float:
        """Return the mean entropy at the outlines of predicted class ids (H, W); without one, of all pixels.

        Of several networks or transformed copies it is the entropy of their mean probabilities, which
        grows with their disagreement.
        """
        import cv2

        window, entropy = np.ones((3, 3), np.uint8), self._entropy
        is_outline = cv2.dilate(ids, window) != cv2.erode(ids, window)
        return float(entropy[is_outline].mean() if is_outline.any() else entropy.mean())
