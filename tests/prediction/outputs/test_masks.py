"""What becomes of predictions: files that others can read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image, ImageDraw
from unet_ddp.prediction.outputs.files import Part, in_order, replacing

from unet_ddp.data.formats.read import read_mask
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs.masks import read_ids, write_mask
from unet_ddp.prediction.outputs.polygons import outline
from unet_ddp.prediction.outputs.rle import decode_rle, encode_rle
from unet_ddp.prediction.prediction import Prediction


def by_hand(text: str, size: tuple[int, int], order: str) -> np.ndarray:
    """Another decoder: pixel by pixel, as the challenges' pages describe it."""
    mask = np.zeros(size, np.uint8)
    words = [int(word) for word in text.split()]
    for start, length in zip(words[::2], words[1::2], strict=True):
        for pixel in range(start - 1, start - 1 + length):
            place = divmod(pixel, size[1]) if order == "rows" else divmod(pixel, size[0])[::-1]
            assert mask[place] == 0
            mask[place] = 1
    return mask


@pytest.mark.parametrize("order", ["rows", "columns"])
def test_run_lengths_go_there_and_back(rng: np.random.Generator, order: str) -> None:
    sizes = [(1, 1), (1, 7), (7, 1), (5, 8), (30, 41)]
    for size in sizes:
        for share in (0, 0.1, 0.5, 0.9, 1):
            mask = (rng.random(size) < share).astype(np.uint8)
            text = encode_rle(mask, order)
            assert np.array_equal(by_hand(text, size, order), mask)
            assert np.array_equal(decode_rle(text, size, order), mask)


def test_run_lengths_are_those_of_the_challenges() -> None:
    mask = np.array([[0, 1, 1], [1, 0, 0]], np.uint8)
    assert encode_rle(mask) == "2 3"  # 2, 3 and, in the next row, 4
    assert encode_rle(mask, "columns") == "2 2 5 1"
    assert encode_rle(np.zeros((2, 2))) == ""
    for bad in ("1", "0 3", "5 3"):
        with pytest.raises(ValueError, match=r"run|pairs"):
            decode_rle(bad, (2, 3))


def holds(ring: list[list[int]], size: tuple[int, int]) -> np.ndarray:
    """Pixels whose centre lies in a ring: even-odd rule, by rays to the left."""
    y, x = (np.indices(size) + 0.5).astype(float)
    inside = np.zeros(size, bool)
    for (x0, y0), (x1, y1) in pairwise(ring):
        assert (x0 == x1) != (y0 == y1)  # along the edges
        inside ^= (min(y0, y1) < y) & (y < max(y0, y1)) & (x0 < x) & (x0 == x1)
    return inside


def shoelace(ring: list[list[int]]) -> float:
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(ring)) / 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_outlines_hold_the_objects_pixels_and_no_other(
    rng: np.random.Generator, share: float
) -> None:
    """On noise: single pixels, lines, nodata_mask, objects in nodata_mask, corners that touch."""
    ids = (rng.random((23, 31)) < share).astype(np.uint8)
    covered = np.zeros(ids.shape, int)
    for feature in outline(ids, Labels((0, 255), names=("road", "car")), "a.png"):
        outer, *nodata_mask = feature["geometry"]["coordinates"]
        inside = holds(outer, ids.shape)
        for hole in nodata_mask:
            assert shoelace(hole) < 0 and hole[0] == hole[-1]
            inside &= ~holds(hole, ids.shape)
        assert shoelace(outer) > 0 and outer[0] == outer[-1] and len(outer) >= 5
        about = feature["properties"]
        assert about["class"] == "car" and about["image"] == "a.png"
        assert about["area"] == inside.sum()
        assert sum(map(shoelace, [outer, *nodata_mask])) == about["area"]
        covered += inside
    assert np.array_equal(covered, ids)


def test_outlines_of_a_drawn_shape() -> None:
    picture = Image.new("L", (20, 12))
    ImageDraw.Draw(picture).rectangle((3, 2, 10, 8), fill=1)
    ImageDraw.Draw(picture).rectangle((5, 4, 6, 5), fill=0)
    (feature,) = outline(np.asarray(picture), Labels((0, 1)), "a")
    outer, hole = feature["geometry"]["coordinates"]
    assert sorted(map(tuple, outer[:-1])) == [(3, 2), (3, 9), (11, 2), (11, 9)]
    assert sorted(map(tuple, hole[:-1])) == [(5, 4), (5, 6), (7, 4), (7, 6)]
    assert feature["properties"]["area"] == 8 * 7 - 4


LABELS = [
    Labels((0, 255)),
    Labels((0, 1)),
    Labels((0, 3, 7)),
    Labels((5, 300)),
    Labels((0xFF0000, 0x00FF00, 0x0000FF), rgb=True),
    Labels((0, 2), palette=((9, 9, 9), (1, 1, 1), (200, 100, 0))),
]


def as_others_see(labels: Labels, ids: np.ndarray) -> np.ndarray:
    """Values, or colours where OpenCV makes them of a palette."""
    image = labels.to_image(ids)
    if image.mode != "P":
        return np.asarray(image)
    return np.asarray(image.convert("RGB"))[..., ::-1]


@pytest.mark.parametrize("labels", LABELS, ids=str)
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_masks_are_read_back_as_they_were(
    tmp_path: Path, rng: np.random.Generator, labels: Labels, suffix: str
) -> None:
    """By ourselves, and by others: Pillow, OpenCV, tifffile."""
    ids = rng.integers(0, labels.num_classes, (1001, 301)).astype(np.uint8)  # several bands
    path = tmp_path / f"m{suffix}"
    write_mask(Prediction.of_ids(ids, labels), path)
    assert np.array_equal(read_ids(path, labels), ids)
    assert np.array_equal(np.array(labels.values)[ids], read_mask(path))
    if suffix == ".tif":
        stored = tifffile.imread(path)
        assert np.array_equal(stored, np.asarray(labels.to_image(ids)))
    else:
        stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(
            stored[..., ::-1] if labels.rgb else stored, as_others_see(labels, ids)
        )
    with Image.open(path) as image:
        assert (
            np.array_equal(image.convert("RGB"), labels.to_image(ids).convert("RGB"))
            or max(labels.values) > 255
        )


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    with replacing(path) as half:
        half.write_text("first")
    with pytest.raises(RuntimeError), replacing(path) as half:
        half.write_text("sec")
        raise RuntimeError
    assert path.read_text() == "first"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    with pytest.raises(UserError, match="can't be written"), replacing(path / "b") as half:
        half.write_text("")


def test_parts_of_several_processes_are_joined_in_order(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    parts = [Part(path, rank) for rank in range(3)]
    for number in (4, 1, 7, 0, 2, 3, 6, 5):
        parts[number % 3].add(number, f"image {number}, «{json.dumps('é')}»" if number else "")
    for part in parts:
        part.close()
    lines = [line.decode() for line in in_order(path, 3)]
    assert lines == ["", *(f"image {n}, «{json.dumps('é')}»" for n in range(1, 8))]
    for part in parts:
        part.drop()
    assert list(tmp_path.iterdir()) == []
