"""Bit fields: from the values in masks to classes, and back."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import keep_in_memory
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.cache.samples import SampleCache
from unet_ddp.extras.overlap.bits import MOST_CLASSES, find_truth
from unet_ddp.extras.overlap.head import Sigmoid
from unet_ddp.extras.overlap.labels import OverlapLabels
from unet_ddp.extras.overlap.rules import infer_overlap_labels
from unet_ddp.settings import with_values

PATH = Path("mask.png")


def make_labels(count: int, ignore: int | None = None) -> OverlapLabels:
    return OverlapLabels.of(count, None, rgb=False, ignore=ignore)


@pytest.mark.parametrize("count", range(2, 16))
def test_values_come_back_as_they_were(rng: np.random.Generator, count: int) -> None:
    labels = make_labels(count, ignore=1 << count)
    values = rng.integers(0, (1 << count) + 1, (40, 30)).astype(np.int32)
    values.flat[:3] = 0, (1 << count) - 1, 1 << count
    ids = labels.to_ids(values, PATH)
    assert ids.dtype == (np.uint8 if count <= 7 else np.int16)
    assert ((ids == IGNORE_ID) == (values == 1 << count)).all()
    for k, plane in enumerate(labels.planes(ids)):
        assert (plane == ((values >> k & 1 == 1) & (values < 1 << count))).all()
    truth = find_truth(torch.from_numpy(ids)[None].long(), count)[0]
    assert (truth.numpy() == np.stack([*labels.planes(ids)])).all()
    again = labels.to_ids(labels.to_values(ids), PATH)
    assert (again == ids).all()
    assert from_plain(labels) == labels


def from_plain(labels: OverlapLabels) -> Labels:
    return Labels.from_dict(labels.to_dict())


def test_three_bands_are_three_classes() -> None:
    labels = OverlapLabels.of(3, ("a", "b", "c"), rgb=True, ignore=0xFFFFFF)
    codes = np.array([[0x000000, 0xFF0000, 0x00FF01, 0xFFFFFF]], np.int32)
    ids = labels.to_ids(codes, PATH)
    assert np.stack([*labels.planes(ids)])[:, 0].astype(int).tolist() == [
        [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0],
    ]  # fmt: skip
    assert ids[0, 3] == IGNORE_ID


def test_each_class_has_its_threshold() -> None:
    labels = with_thresholds(0.25, 0.5, 0.75)
    scores = torch.tensor([0.3, 0.6, 0.6]).logit().view(3, 1, 1).numpy()
    ids = Sigmoid(labels).find_ids(scores, None)
    assert [bool(plane) for plane in labels.planes(ids)] == [True, True, False]
    ids = Sigmoid(labels).find_ids(np.zeros((3, 1, 1), np.float32), None)  # a probability of 0.5
    assert [bool(plane) for plane in labels.planes(ids)] == [True, True, False]
    mean = labels.average([labels, with_thresholds(0.75, 0.5, 0.25)])
    assert mean.thresholds == (0.5, 0.5, 0.5)
    without = make_labels(3)  # of a network that has chosen none: 0.5 each
    assert labels.average([labels, without]).thresholds == (0.375, 0.5, 0.625)
    assert without.average([without, labels]).thresholds == (0.375, 0.5, 0.625)


def with_thresholds(*thresholds: float) -> OverlapLabels:
    values = tuple(1 << k for k in range(len(thresholds)))
    return OverlapLabels(values, thresholds=thresholds)


def test_the_mean_of_networks_is_that_of_their_probabilities(rng: np.random.Generator) -> None:
    sigmoid = Sigmoid(make_labels(3))
    logits = torch.from_numpy(rng.normal(0, 3, (4, 2, 3, 5, 6)))
    total = sigmoid.to_logarithms(logits[0])
    for each in logits[1:]:
        total = torch.logaddexp(total, sigmoid.to_logarithms(each))
    torch.testing.assert_close(sigmoid.to_logits(total).sigmoid(), logits.sigmoid().mean(0))


def test_outlines_are_drawn_and_the_inside_is_not() -> None:
    values = np.zeros((30, 30), np.uint8)
    values[2:20, 2:20] |= 1
    values[10:28, 10:28] |= 2
    labels = make_labels(2)
    drawn = labels.layer(labels.to_ids(values, PATH))
    assert drawn[2, 2:20].tolist() == [0] * 18 and drawn[27, 10:28].tolist() == [1] * 18
    assert drawn[5, 5] not in labels.foreground and drawn[14, 14] not in labels.foreground
    regions = [*labels.regions(labels.to_ids(values, PATH))]
    assert [int(each.counted.sum()) for each in regions] == [18 * 18] * 2


def infer(values: list[int], rgb: bool = False, **settings: object) -> OverlapLabels:
    masks = MaskValues(dict.fromkeys(values, 9), dict.fromkeys(values, "m.png"), rgb)
    return infer_overlap_labels(masks, with_values(DataConfig(), settings))


def test_classes_are_the_bits_that_occur() -> None:
    assert infer([0, 1, 4, 5]).num_classes == 3
    assert infer([0, 1, 3, 255], ignore_index=255).num_classes == 2
    assert infer([0, 1, 3], class_names=("a", "b", "c")).class_names == ["a", "b", "c"]
    assert infer([0, 0xFF0000], rgb=True).num_classes == 3


@pytest.mark.parametrize(
    ("values", "rgb", "shown"),
    [
        ([0, 255], False, "255 in m.png is all 8 classes"),
        ([0, 1, 2, 3, 255], False, "255 in m.png is all 8 classes"),  # pages beside one of white
        ([0, 0xFFFFFF], True, "#ffffff in m.png is all 3 classes"),
        ([0, 0x010101], True, "#010101 in m.png is all 3 classes"),
        ([0, 0xFF0000, 0xFFFFFF], True, "#ffffff in m.png is all 3 classes"),
    ],
)
def test_white_is_not_all_classes(values: list[int], rgb: bool, shown: str) -> None:
    with pytest.raises(UserError) as raised:
        infer(values, rgb)
    white = shown.split()[0]
    assert shown in str(raised.value) and "leave --overlap out" in str(raised.value)
    assert "use --ignore-index" in str(raised.value) and str(raised.value).count(white) == 2
    ignored = infer([*values, 1, 2], rgb, ignore_index=values[-1])
    assert ignored.ignore == values[-1]


@pytest.mark.parametrize(
    ("values", "rgb"),
    [
        ([0, *(1 << k for k in range(8)), 255], False),
        ([0, 1, 3, 7, 15, 31, 63, 127, 255], False),  # each inside the one before
        (list(range(256)), False),
        ([0, 0xFF0000, 0x00FF00, 0xFFFFFF], True),  # blue is in no other
        ([0, 511], False),
    ],
)
def test_white_may_be_all_classes_that_occur_elsewhere(values: list[int], rgb: bool) -> None:
    infer(values, rgb)


def test_the_value_that_predictions_give_pixels_without_data_is_no_class_unasked() -> None:
    values = [0, 1, 3, 128]
    named = infer(values, class_names=("a", "b"))
    assert named.num_classes == 2 and not named.doubt(values, "")
    assert infer(values, ignore_index=128).num_classes == 2
    for count in (6, 7):  # of eight and more, 128 is the last but one or an inner bit
        names = tuple("abcdefgh"[:count])
        assert infer(values, class_names=names).num_classes == count
    assert infer(values, class_names=tuple("abcdefgh")).num_classes == 8
    (warning,) = infer(values).doubt(values, "")
    assert warning == (
        "mask value 128 is class 8, and class 7 occurs nowhere: if 128 is of pixels without data, as in "
        "predictions, use --ignore-index 128"
    )
    for others in ([0, 1, 3], [0, 1, 64, 128]):
        assert not infer(others).doubt(others, "")


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        ([0, 1], {}, "--overlap: 1 classes, mask values 0, 1; expected 2 to 15"),
        ([0, 70_000], {}, "--overlap: 17 classes"),
        ([0, 8], {"class_names": ("a", "b")}, "--class-names: 2 names for 4 classes"),
    ],
)
def test_values_that_are_no_bits_are_refused(
    values: list[int], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        infer(values, **settings)
    with pytest.raises(UserError, match=r"mask.png: value 4; expected bits of 2 classes, 0 to 3"):
        make_labels(2).to_ids(np.array([[4]], np.int32), PATH)


@pytest.mark.parametrize("store", ["cache", "memory"])
@pytest.mark.parametrize("count", [7, 8, 15])
def test_masks_of_more_than_seven_classes_are_kept_too(
    tmp_path: Path, count: int, store: str
) -> None:
    """In two bytes a pixel, of images of an odd number of bytes."""
    values = (np.arange(35, dtype=np.uint16).reshape(5, 7) * 937) % (1 << count)
    values[0, 0] = 1 << MOST_CLASSES
    for name in ("imgs", "masks"):
        (tmp_path / name).mkdir()
    Image.fromarray(np.ones((5, 7), np.uint8)).save(tmp_path / "imgs" / "a.png")
    Image.fromarray(values).save(tmp_path / "masks" / "a.png")
    pairs, labels, wanted = (
        find_pairs(tmp_path / "imgs", tmp_path / "masks"),
        make_labels(count),
        ImageFormat(1),
    )
    data = SegmentationDataset(pairs, labels, wanted, scale=1.0)
    if store == "cache":
        data.store = SampleCache(tmp_path, labels, wanted, scale=1.0, resize_masks=False)
    else:
        keep_in_memory([data], 35, World())
    assert data.store is not None
    ids = labels.to_ids(values.astype(np.int32), PATH)
    decoded = data[0, 0]
    assert not isinstance(decoded, UserError) and (decoded.mask.numpy() == ids).all()
    kept = data.store.load(0, pairs[0], Mock(side_effect=AssertionError("is not kept")))
    assert kept[1].dtype == ids.dtype and (kept[1] == ids).all() and (kept[0] == 1).all()
    again = data[1, 0]
    assert not isinstance(again, UserError) and torch.equal(again.mask, decoded.mask)


def test_a_value_to_ignore_is_no_sum_of_bits_where_each_class_has_a_folder() -> None:
    """There it is a value in the folder's masks; bits 1 and 2 are two classes."""
    labels = make_labels(2, ignore=3)
    codes = np.array([[0, 3, 2]], np.int32)
    here, folders = (labels.to_ids(codes, Path(path)) for path in ("m/a.png", "m/*/a.png"))
    assert here[0, 1] == IGNORE_ID and here[0, 2] == folders[0, 2]
    assert (
        folders[0, 1] != IGNORE_ID
        and find_truth(torch.from_numpy(folders)[None], 2)[0, :, 0, 1].all()
    )
