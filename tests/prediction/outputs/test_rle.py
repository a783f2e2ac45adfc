"""Run lengths, against a decoder that follows the challenges' description pixel by pixel."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.lists import Listed
from unet_ddp.prediction.outputs.rle import encode_rle, format_image, rle_file


def decode(text: str, size: tuple[int, ...], order: str) -> np.ndarray:
    mask = np.zeros(size, np.uint8)
    numbers = [int(word) for word in text.split()]
    for start, length in zip(numbers[::2], numbers[1::2], strict=True):
        for pixel in range(start - 1, start - 1 + length):
            place = divmod(pixel, size[1]) if order == "rows" else divmod(pixel, size[0])[::-1]
            assert mask[place] == 0
            mask[place] = 1
    return mask


def test_runs_are_counted_from_one_along_rows_or_columns() -> None:
    mask = np.array([[0, 1, 1], [1, 0, 0]], np.uint8)
    assert encode_rle(mask, "rows") == "2 3"  # 2, 3 and, in the next row, 4
    assert encode_rle(mask, "columns") == "2 2 5 1"
    assert encode_rle(np.zeros((2, 2), np.uint8), "rows") == ""
    assert encode_rle(np.ones((2, 2), np.uint8), "rows") == "1 4"
    assert encode_rle(np.array([[1, 0, 1]], np.uint8), "rows") == "1 1 3 1"


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (30, 41)])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 1])
def test_any_mask_comes_back(
    rng: np.random.Generator, order: str, size: tuple[int, int], share: float
) -> None:
    mask = (rng.random(size) < share).astype(np.uint8)
    assert np.array_equal(decode(encode_rle(mask, order), size, order), mask)


def test_the_file_is_the_challenges() -> None:
    file = rle_file(Path("a.csv"), Labels((0, 255)), PredictConfig((), rle_order="columns"))
    assert (file.path, file.header, file.separator) == (Path("a.csv"), b"img,rle_mask", b"")
    mask = np.array([[0, 1], [1, 0]], np.uint8)
    assert file.format(Listed(Path("a.png"), mask)) == "a.png,2 2"
    assert format_image(Listed(Path('a "b", c.png'), mask), "rows") == '"a ""b"", c.png",2 2'
    name = '=a\n"b.png'
    row = format_image(Listed(Path(name), mask), "rows")
    assert list(csv.reader(io.StringIO(row, newline=""))) == [[name, "2 2"]]
    with pytest.raises(UserError, match=r"--rle: .* two classes, this network has 3"):
        rle_file(Path("a.csv"), Labels((0, 1, 2)), PredictConfig(()))
