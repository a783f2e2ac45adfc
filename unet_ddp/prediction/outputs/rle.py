"""Binary masks as run lengths, in the format of the Carvana challenge and its like."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs.files import replacing

ORDERS = ("rows", "columns")
HEADER = ("img", "rle_mask")


def encode_rle(mask: NDArray[np.generic], order: str = "rows") -> str:
    """`mask` (H, W), where not 0, as pairs of a start and a length.

    Pixels are numbered from 1. The Carvana challenge numbers them from left to right, then from
    top to bottom: order "rows". The Data Science Bowl of 2018 and most later challenges go down
    the columns first: order "columns".

    Returns:
        "start length start length …"; empty where there is no pixel.
    """
    assert order in ORDERS
    flat = (mask if order == "rows" else mask.T).astype(bool, order="C").ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 2
    starts_inside = [1] if flat.size and flat[0] else []
    ends_inside = [flat.size + 1] if flat.size and flat[-1] else []
    bounds = np.concatenate([starts_inside, edges, ends_inside]).astype(np.int64)
    bounds[1::2] -= bounds[::2]
    return " ".join(map(str, bounds.tolist()))


def decode_rle(text: str, size: tuple[int, int], order: str = "rows") -> NDArray[np.uint8]:
    """The mask (H, W) of 0 and 1 that `encode_rle` made `text` of.

    Raises:
        ValueError: no pairs of numbers, or pixels that are not in a mask of that size.
    """
    assert order in ORDERS
    numbers = np.array(text.split(), np.int64)
    if len(numbers) % 2:
        raise ValueError(f"{len(numbers)} numbers are no pairs of start and length")
    starts, lengths = numbers[::2], numbers[1::2]
    height, width = size
    if len(numbers) and (starts.min() < 1 or (starts + lengths - 1).max() > height * width):
        raise ValueError(f"a run lies outside of {height} x {width} pixels")
    flat = np.zeros(height * width, np.uint8)
    for start, length in zip(starts - 1, lengths, strict=True):
        flat[start : start + length] = 1
    return flat.reshape(height, width) if order == "rows" else flat.reshape(width, height).T


def csv_row(name: str, runs: str) -> str:
    """A row of the file, without its end."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow((name, runs))
    return line.getvalue()


def write_rle(path: Path, rows: Iterable[bytes]) -> int:
    """A CSV file of rows that `csv_row` made; how many there were.

    Raises:
        UserError: it can't be written.
    """
    count = 0
    with replacing(path) as half, half.open("wb") as file:
        file.write(",".join(HEADER).encode() + b"\n")
        for count, row in enumerate(rows, start=1):  # noqa: B007
            file.write(row + b"\n")
    return count


def check_two_classes(num_classes: int) -> None:
    """Run lengths know pixels that belong and pixels that do not.

    Raises:
        UserError: there are more classes.
    """
    if num_classes != 2:
        raise UserError(
            f"--rle: its format has two classes, this network {num_classes}; use --polygons, or the "
            "masks themselves"
        )
