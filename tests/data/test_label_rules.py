"""Classes from the values in the masks and the flags."""

from __future__ import annotations

import re
from typing import Any

import pytest

from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues, choose_labels, infer_labels
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError


def masks(values: list[int] | dict[int, int], **how: Any) -> MaskValues:
    counts = values if isinstance(values, dict) else dict.fromkeys(values, 10)
    return MaskValues(counts, {value: f"m{value}.png" for value in counts}, **how)


@pytest.mark.parametrize(
    ("values", "rgb", "how", "expected"),
    [
        ([0, 255], False, {}, (0, 255)),
        ([255, 0], False, {}, (0, 255)),
        ([0, 1], False, {}, (0, 1)),
        ([0, 65535], False, {}, (0, 65535)),
        ([0, 1, 2, 5], False, {}, (0, 1, 2, 5)),
        ([0, 2], False, {"classes": 4}, (0, 1, 2, 3)),
        ([1, 2, 3], False, {"classes": 3}, (1, 2, 3)),
        ([0, 3], False, {"classes": 4}, (0, 1, 2, 3)),
        ([0, 4], False, {"classes": 2}, (0, 4)),
        ([0, 255], False, {"classes": 2}, (0, 255)),
        ([0], False, {"classes": 2}, (0, 1)),
        ([], False, {"classes": 2}, (0, 1)),
        (list(range(12)), False, {"ignore": 11}, tuple(range(11))),
        ([0, 1, 255], False, {"ignore": 255}, (0, 1)),
        ([0, 1], False, {"classes": 2, "ignore": 255}, (0, 1)),  # in other masks, perhaps
        ([0, 1, 255], False, {}, (0, 1, 255)),  # 255 is not ignored unless asked for
        (list(range(255)), False, {}, tuple(range(255))),
        ([0x000000, 0xFF0000], True, {}, (0x000000, 0xFF0000)),
        ([0, 1], True, {"classes": 2}, (0, 1)),
    ],
)
def test_classes_from_values(
    values: list[int], rgb: bool, how: dict, expected: tuple[int, ...]
) -> None:
    palette = ((0, 0, 0), (1, 1, 1))
    labels = infer_labels(masks(values, rgb=rgb, palette=palette), **how)
    assert labels == Labels(expected, rgb, how.get("ignore"), palette)


@pytest.mark.parametrize(
    ("values", "rgb", "how", "said"),
    [
        ([0], False, {}, "all masks contain only the value 0: there is nothing to segment"),
        (
            [-1, 0, 1],
            False,
            {},
            "mask value -1, e.g. in m-1.png: classes are values from 0 to 65535",
        ),
        ([0, 70000], False, {"classes": 2}, "mask value 70000, e.g. in m70000.png: classes are"),
        (
            [0, 9],
            False,
            {"ignore": 9},
            "only the value 0, 9, of which --ignore-index leaves out 9: there is",
        ),
        ([0, 255], False, {"classes": 3}, "--classes 3: the masks contain 2 values (0, 255)"),
        ([0, 1, 2, 300], False, {"classes": 3}, "--classes 3"),
        ([0, 1], False, {"ignore": 7}, "--ignore-index 7: occurs in no mask; the values are 0, 1"),
        ([0, 0xFF], True, {"ignore": 1}, "the masks are colour images: for 1, type one of these"),
        (
            [0, 1],
            False,
            {"ignore": 0xFF0000},
            "#ff0000: occurs in no mask; the values are 0, 1, no colours",
        ),
        (
            [0, 1],
            False,
            {"ignore": 0xFF0000, "classes": 2},
            "--ignore-index #ff0000: occurs in no mask",
        ),
        ([0, 1], True, {"ignore": 0xFF, "classes": 2}, "--ignore-index #0000ff: occurs in no mask"),
        (
            list(range(12)),
            False,
            {"classes": 12, "ignore": 11},
            "use --classes 11, or leave it out",
        ),
        (
            list(range(256)),
            False,
            {},
            "256 different values (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 244 more)",
        ),
        (
            [1, 2],
            True,
            {"classes": 3},
            "--classes 3: the masks contain 2 values (#000001, #000002)",
        ),
    ],
)
def test_values_that_make_no_classes(values: list[int], rgb: bool, how: dict, said: str) -> None:
    with pytest.raises(UserError) as caught:
        infer_labels(masks(values, rgb=rgb), **how)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "values", [[-1, 0], [-1, 0, 1], [-2, -1, 0], [-1, 1], [0, 70000], [0, 1, 70000]]
)
def test_what_is_advised_for_an_impossible_value_makes_classes(values: list[int]) -> None:
    with pytest.raises(UserError) as caught:
        infer_labels(masks(values))
    text = str(caught.value)
    if named := re.search(r"--ignore-index (\S+?)(,|$)", text):
        assert infer_labels(masks(values), ignore=int(named[1])).num_classes > 1
    if "--mask-threshold 0" in text:
        assert min(values) <= 0 < max(values)
    assert ("without a sign" in text) == (min(values) < 0)


def test_the_rarest_value_is_named_with_its_file() -> None:
    with pytest.raises(UserError, match=r"77 has 3 pixels, e\.g\. in m77\.png"):
        infer_labels(masks({0: 90, 77: 3, 255: 20}), classes=2)


@pytest.mark.parametrize("ignore", [0, 1])
def test_an_ignored_value_is_no_class_id(ignore: int) -> None:
    with pytest.raises(UserError, match=f"--classes 2 counts the value {ignore}"):
        infer_labels(masks([0, 1]), classes=2, ignore=ignore)
    assert infer_labels(masks([0, 1, 2]), classes=2, ignore=2).values == (0, 1)


# -- flags ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, Labels((0, 7))),
        ({"invert": True}, Labels((7, 0))),
        ({"class_names": ("a", "b")}, Labels((0, 7), names=("a", "b"))),
        ({"mask_threshold": 0}, Labels((0, 255), threshold=0)),
        ({"mask_threshold": 5, "ignore_index": 7}, None),
        ({"mask_threshold": 6}, Labels((0, 255), threshold=6)),
        ({"mask_threshold": 0, "invert": True}, Labels((255, 0), threshold=0)),
        ({"classes": 8}, Labels(tuple(range(8)))),
        ({"classes": 7, "ignore_index": 7}, Labels(tuple(range(7)), ignore=7)),
    ],
)
def test_flags_decide_the_classes(flags: dict[str, Any], expected: Labels | None) -> None:
    if expected is None:
        with pytest.raises(UserError, match=r"\(0 to 0\) are at or below it"):
            choose_labels(masks([0, 7]), DataConfig(**flags))
    else:
        assert choose_labels(masks([0, 7]), DataConfig(**flags)) == expected


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"class_names": ("a",)}, "1 names for 2 classes (mask values 0, 7)"),
        ({"class_names": ("a", "a")}, "2 names for 2 classes"),
        ({"mask_threshold": 7}, "all mask values (0 to 7) are at or below it"),
        ({"mask_threshold": 5, "ignore_index": 0}, "all mask values (7 to 7) are above it"),
        ({"mask_threshold": 7, "ignore_index": 0}, "all mask values (7 to 7) are at or below it"),
        ({"classes": 8, "invert": True}, "--invert: for two classes, and there are 8"),
    ],
)
def test_flags_that_do_not_fit_the_masks(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_labels(masks([0, 7]), DataConfig(**flags))
    assert said in str(caught.value)


def test_a_threshold_of_colours_is_of_their_brightest_channel() -> None:
    colours = masks([0x000020, 0x00F000], rgb=True)
    expected = Labels((0, 0xFFFFFF), rgb=True, threshold=0x7F)
    assert choose_labels(colours, DataConfig(mask_threshold=0x7F)) == expected
    with pytest.raises(UserError, match=r"\(32 to 240\) are at or below"):
        choose_labels(colours, DataConfig(mask_threshold=0xF0))


def test_a_threshold_of_deep_grey_values_is_of_the_whole_value() -> None:
    expected = Labels((0, 255), threshold=200)
    assert choose_labels(masks([0, 0x12C]), DataConfig(mask_threshold=200)) == expected


PALETTE = (0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 255, 0), (224, 224, 192)


@pytest.mark.parametrize(
    ("ignore", "said"),
    [
        (
            0xFF0000,
            "#ff0000: occurs in no mask; the values are 0, 1, 2, 3; type 1, the index of this colour",
        ),
        (0x00FF00, "#00ff00: occurs in no mask; the values are 0, 1, 2, 3"),
        (0xE0E0C0, "#e0e0c0: occurs in no mask; the values are 0, 1, 2, 3"),
        (0x0000FF, "--ignore-index 255: occurs in no mask; the values are 0, 1, 2, 3"),
    ],
)
def test_a_colour_to_ignore_in_masks_of_indices(ignore: int, said: str) -> None:
    with pytest.raises(UserError) as caught:
        infer_labels(masks([0, 1, 2, 3], palette=PALETTE), ignore=ignore)
    assert str(caught.value).endswith(said)


def test_a_colour_to_ignore_that_some_data_lack_has_its_index_in_the_palette() -> None:
    """VOC's void, in a part of the images without it: its index may be ignored with --classes."""
    known = masks([0, 1, 2, 3], palette=PALETTE)
    with pytest.raises(UserError, match=r"2, 3; type 4, the index of this colour$"):
        infer_labels(known, classes=4, ignore=0xE0E0C0)
    assert infer_labels(known, classes=4, ignore=4).ignore == 4
