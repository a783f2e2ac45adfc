"""Run lengths, against a decoder that follows the challenges' description pixel by pixel."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from tests.prediction.outputs.writing import image_files, make, merge, predicted
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.outputs.rle import RunLengths, encode_rle


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


def test_the_file_is_the_challenges(tmp_path: Path) -> None:
    labels = Labels((0, 255))
    file = make(RunLengths, labels, rle=str(tmp_path / "a.csv"), rle_order="columns")
    found = predicted(np.array([[0, 1], [1, 1]], np.uint8), labels)
    assert merge(file, [("p/a.png", found)]).read_bytes() == b"img,rle_mask\na.png,2 3\n"
    rows = make(RunLengths, labels, rle="a.csv")
    assert rows.record(image_files('a "b", c.png'), found) == '"a ""b"", c.png",2 3'
    name = '=a\n"b.png'
    row = rows.record(image_files(name), found)
    assert list(csv.reader(io.StringIO(row, newline=""))) == [[name, "2 3"]]


def test_run_lengths_need_two_classes() -> None:
    with pytest.raises(UserError, match=r"--rle: .* one class, this network has 0, 1, 2"):
        make(RunLengths, Labels((0, 1, 2)), rle="a.csv").check({})
