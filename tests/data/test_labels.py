"""Mask values to class ids and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unet_ddp.data.checks.scan import scan
from unet_ddp.data.formats.read import read_mask
from unet_ddp.data.label_rules import infer_labels
from unet_ddp.data.labels import IGNORE_ID, Labels
from unet_ddp.data.pairs import find_pairs
from unet_ddp.errors import UserError


@pytest.mark.parametrize(
    ("values", "how", "expected"),
    [
        ([0, 255], {}, (0, 255)),
        ([0, 1], {}, (0, 1)),
        ([0, 65535], {}, (0, 65535)),
        ([0, 1, 2, 5], {}, (0, 1, 2, 5)),
        ([0, 2], {"classes": 4}, (0, 1, 2, 3)),
        ([0, 255], {"classes": 2}, (0, 255)),
        (list(range(12)), {"ignore": 11}, tuple(range(11))),
        ([0, 1, 255], {"ignore": 255}, (0, 1)),
        ([0, 1, 255], {}, (0, 1, 255)),  # 255 is never taken for "ignore" unasked
        ([0x000000, 0xFF0000], {"rgb": True}, (0x000000, 0xFF0000)),
    ],
)
def test_classes_from_values(values: list[int], how: dict, expected: tuple[int, ...]) -> None:
    assert infer_labels(values, **how).values == expected


@pytest.mark.parametrize(
    ("values", "how", "said"),
    [
        ([0], {}, "one value only"),
        ([0, 255], {"classes": 3}, "--classes 3"),
        ([0, 1, 2, 300], {"classes": 3}, "--classes 3"),
        ([0, 1], {"ignore": 7}, "--ignore-index 7"),
        (list(range(12)), {"classes": 12, "ignore": 11}, "--classes 11"),
        (list(range(300)), {}, "300 different values"),
    ],
)
def test_values_that_make_no_classes(values: list[int], how: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        infer_labels(values, **how)


LABELS = [
    Labels((0, 255)),
    Labels((0, 1)),
    Labels((0, 1, 2, 7), ignore=9),
    Labels((0, 65535)),
    Labels((0x000000, 0xFF0000, 0x00FF80), rgb=True),
    Labels((0, 1), palette=((0, 0, 0), (255, 0, 0))),
]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_a_written_mask_reads_back_as_the_same_classes(
    labels: Labels, tmp_path: Path, rng: np.random.Generator
) -> None:
    ids = rng.integers(0, labels.num_classes, (11, 13)).astype(np.uint8)
    for name in ("mask.png", "mask.tif"):
        labels.to_image(ids).save(tmp_path / name)
        assert (labels.to_ids(read_mask(tmp_path / name), tmp_path) == ids).all()
    assert Labels.from_dict(labels.to_dict()) == labels


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_a_written_mask_is_visible(labels: Labels) -> None:
    """Masks of 0 and 1 look black unless a palette shows them."""
    ids = np.arange(labels.num_classes, dtype=np.uint8)[None]
    image = labels.to_image(ids)
    shown = np.asarray(image if image.mode == "I;16" else image.convert("RGB")).astype(int)
    seen = [shown[0, k].max() for k in range(1, labels.num_classes)]
    assert min(seen) >= 64


def test_an_ignored_value_and_a_strange_one() -> None:
    labels = Labels((0, 1), ignore=255)
    codes = np.array([[0, 1, 255]], np.int32)
    assert labels.to_ids(codes, Path("m.png")).tolist() == [[0, 1, IGNORE_ID]]
    with pytest.raises(UserError, match=r"m\.png: mask value 7 in 1 pixel"):
        labels.to_ids(np.array([[0, 7]], np.int32), Path("m.png"))


def test_scan_believes_its_cache_until_a_file_changes(tmp_path: Path) -> None:
    for side in ("i", "m"):
        (tmp_path / side).mkdir()
        Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8)).save(tmp_path / side / "a.png")
    pairs, _ = find_pairs(tmp_path / "i", tmp_path / "m")
    looked: list[int] = []

    def progress(facts, total):  # type: ignore[no-untyped-def]
        looked.append(total)
        return facts

    assert scan(pairs, progress=progress).mask_values().values == [0, 1]
    mask = tmp_path / "m" / "a.png"
    Image.fromarray(np.array([[0, 3], [3, 3]], np.uint8)).resize((2, 2)).save(mask)
    import os

    os.utime(mask, ns=(1, 1))
    assert scan(pairs, progress=progress).mask_values().values == [0, 3]
    assert looked == [2, 2]


@pytest.mark.parametrize("ignore", [0, 3, 255])
@pytest.mark.parametrize("values", [(0, 255), (255, 0)])
def test_what_is_ignored_is_on_no_side_of_a_threshold(values: tuple[int, int], ignore: int) -> None:
    codes = np.array([[0, 1, 3, 128, 200, 255]], np.int32)
    labels = Labels(values, threshold=127, ignore=ignore)
    ids = labels.to_ids(codes, Path("m.png"))
    bright = 1 if values == (0, 255) else 0
    expected = np.where(codes > 127, bright, 1 - bright)
    assert (ids[codes != ignore] == expected[codes != ignore]).all()
    assert (ids[codes == ignore] == IGNORE_ID).all()
