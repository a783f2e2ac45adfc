"""Soft masks, and masks as JPEG, of more than two classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import SEED
from tests.extras.palettes.test_rules import palette
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues, choose_labels, warn_soft_edges
from unet_ddp.data.labels import IGNORE_ID, Labels
from unet_ddp.data.masks import Ids, voc_colour
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError

GREYS = [0, 20, 40, 60, 80, 255]
UNEVEN = [0, 1, 2, 5, 255]
COLOURS = [red << 16 | green << 8 | blue for red, green, blue in map(voc_colour, range(9))]
"""Black and PASCAL VOC's first ones: mixtures of two may be near a third."""


def as_jpeg(image: Image.Image) -> Image.Image:
    file = BytesIO()
    image.save(file, "jpeg", quality=85)
    return Image.open(file)


def enlarged(image: Image.Image) -> Image.Image:
    small = image.resize((image.width * 2 // 3, image.height * 2 // 3), Image.Resampling.BILINEAR)
    return small.resize(image.size, Image.Resampling.BILINEAR)


def draw_areas(rng: np.random.Generator, count: int, size: int = 256) -> Ids:
    """Return ids (H, W) of rectangles, each class with some; the first is rarer, the last rarest."""
    ids = np.zeros((size, size), np.uint8)
    for k in [*range(count), *range(count - 1, -1, -1)] * 3:
        top, left = rng.integers(0, size - 48, 2)
        ids[top : top + rng.integers(16, 48), left : left + rng.integers(16, 48)] = k
    return ids


def values_of(
    path: Path, count: int, soften: Callable[[Image.Image], Image.Image], values: list[int]
) -> tuple[MaskValues, list[tuple[Ids, Path]]]:
    """Write soft masks of random areas; return their values, and the true ids of each file."""
    rng = np.random.default_rng(SEED)
    exact = Labels(tuple(values), rgb=max(values) > 255)
    counts: Counter[int] = Counter()
    written = []
    for number in range(count):
        ids = draw_areas(rng, len(values))
        file = path / f"{number}.png"
        soften(Image.fromarray(exact.to_values(ids))).save(file)
        found, pixels = np.unique(read_mask(file), return_counts=True)
        counts.update(dict(zip(found.tolist(), pixels.tolist(), strict=True)))
        written.append((ids, file))
    lossy = "m.png" if soften is as_jpeg else None
    return MaskValues(counts, dict.fromkeys(counts, "m.png"), rgb=exact.rgb, lossy=lossy), written


@pytest.mark.parametrize("soften", [as_jpeg, enlarged])
@pytest.mark.parametrize("values", [GREYS, UNEVEN, COLOURS], ids=["greys", "uneven", "colours"])
def test_the_classes_of_soft_masks_are_found(
    tmp_path: Path, soften: Callable[[Image.Image], Image.Image], values: list[int]
) -> None:
    masks, written = values_of(tmp_path, 6, soften, values)
    assert len(masks.counts) > 2 * len(values)
    labels = choose_labels(masks, DataConfig(classes=len(values), round_masks=True))
    found = labels.to_points(np.array(labels.values))
    wanted = Labels((), labels.rgb).to_points(np.array(values))
    distance = np.abs(wanted[:, None] - found).max(axis=2)
    order = distance.argmin(axis=1).astype(np.uint8)  # the id that each class has got
    assert sorted(order) == list(range(len(values)))
    assert distance.min(axis=1).max() <= (4 if masks.lossy else 0)  # JPEG may move a colour
    assert "other values count as the nearest" in labels.describe()
    assert warn_soft_edges(masks, labels) == []
    for ids, file in written:
        wrong = labels.to_ids(read_mask(file), file) != order[ids]
        inside = ids == np.roll(ids, 3, 0)
        for shift, axis in ((-3, 0), (3, 1), (-3, 1)):
            inside &= ids == np.roll(ids, shift, axis)
        most = 0.03 if masks.lossy else 0.01  # JPEG changes a grey by more than ids differ
        assert wrong[inside].mean() < most  # but near the edges, nearly all pixels have their class


def test_a_value_counts_as_the_nearest_and_near_the_ignored_one_not() -> None:
    labels = Labels((0, 100, 200), ignore=255, rounded=True)
    codes = np.array([[0, 50, 51, 149, 151, 227, 228, 255]])
    expected = [[0, 0, 1, 1, 2, 2, IGNORE_ID, IGNORE_ID]]
    for dtype in (np.uint8, np.int32):  # by table, and by value
        assert labels.to_ids(codes.astype(dtype), Path("m.png")).tolist() == expected
    colours = Labels((0xFF0000, 0x0000FF), rgb=True, rounded=True)
    some = np.array([0xFE0101, 0x80007F, 0x7F0080, 0x0000F0], np.int32)
    assert colours.to_ids(some, Path("m.png")).tolist() == [0, 0, 1, 1]
    swapped = Labels((0, 1, 2), palette=((0, 0, 0), (255, 0, 0), (9, 9, 9)), rounded=True)
    assert swapped.to_ids(np.array([0, 1, 2], np.uint8), Path("m.png")).tolist() == [0, 1, 2]
    predicted = np.array([[0, 1, 2, IGNORE_ID]], np.uint8)
    values = labels.to_values(predicted)
    assert labels.from_file(values, Path("m.png")).tolist() == predicted.tolist()
    with pytest.raises(
        UserError, match="unknown mask values 6, 7, 107, 207 "
    ):  # a prediction has no soft edges
        labels.from_file(values + 7, Path("m.png"))
    assert Labels.from_dict(labels.to_dict()) == labels
    words = "classes: 3, mask values 0, 100, 200; other values count as the nearest; 255 is ignored"
    assert labels.describe() == words


def test_exact_values_need_not_stand_out() -> None:
    counts = {0: 10**6, 1: 10**5, 2: 3}
    masks = MaskValues(counts, dict.fromkeys(counts, "m.png"))
    assert choose_labels(masks, DataConfig(classes=3, round_masks=True)).values == (0, 1, 2)


@pytest.mark.parametrize("lossy", [None, "m.jpg"])
def test_a_class_that_was_not_counted_is_not_lost(lossy: str | None) -> None:
    counts = {0: 900, 1: 40, 128: 200, 127: 30, 255: 400}
    masks = MaskValues(counts, dict.fromkeys(counts, "m.png"), lossy=lossy)
    with pytest.raises(UserError, match="no 2 of the 5 mask values stand out"):
        choose_labels(masks, DataConfig(classes=2, round_masks=True))


def test_noise_around_the_ignored_value_is_no_class() -> None:
    counts = {0: 900, 1: 300, 2: 200, 128: 80, 127: 20, 255: 90, 254: 10}
    masks = MaskValues(counts, dict.fromkeys(counts, "m.png"), lossy="m.jpg")
    config = DataConfig(classes=2, ignore_index=0, round_masks=True)
    assert choose_labels(masks, config).values == (128, 255)


def test_with_a_palette_its_values_are_the_classes(tmp_path: Path) -> None:
    counts = {0: 900, 30: 9, 60: 1, 255: 500}
    masks = MaskValues(counts, dict.fromkeys(counts, "m.png"))
    path = palette(tmp_path, "ground,0", "rare,60", "house,255")
    config = DataConfig(palette=path, round_masks=True)
    labels = choose_labels(masks, config)
    assert labels.values == (0, 60, 255) and labels.names == ("ground", "rare", "house")
    assert labels.to_ids(np.array([30, 31], np.uint8), Path("m.png")).tolist() == [0, 1]
    with pytest.raises(UserError, match=r"also contain 30 in 9 pixels.*or use --round-masks"):
        choose_labels(masks, DataConfig(palette=path))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (DataConfig(round_masks=True), "--round-masks: needs --classes N, or a --palette"),
        (DataConfig(classes=4, round_masks=True, class_names=("a", "b")), "2 names for 4 classes"),
        (DataConfig(classes=2, round_masks=True), "--round-masks: no 2 of the 4 mask values stand out (0, 80, 160, 255)"),
        (DataConfig(classes=5, round_masks=True), "no 5 of the 4 mask values"),
        (DataConfig(classes=4, round_masks=True, ignore_index=9), "--ignore-index 9: occurs in no mask"),
    ],
)  # fmt: skip
def test_what_can_not_be_rounded_is_a_line(config: DataConfig, said: str) -> None:
    counts = {0: 400, 80: 300, 160: 200, 255: 100}
    with pytest.raises(UserError) as caught:
        choose_labels(MaskValues(counts, dict.fromkeys(counts, "m.png")), config)
    assert said in str(caught.value)
