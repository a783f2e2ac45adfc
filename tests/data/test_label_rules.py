"""Classes from the values in the masks and the flags."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import choose_labels, infer_labels, read_palette
from unet_ddp.data.labels import Labels
from unet_ddp.data.mask_values import MaskValues
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels


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
        ([0, 9], False, {"ignore": 9}, "only the value 0, 9: there is nothing to segment"),
        ([0, 255], False, {"classes": 3}, "--classes 3: the masks contain 2 values (0, 255)"),
        ([0, 1, 2, 300], False, {"classes": 3}, "--classes 3"),
        ([0, 1], False, {"ignore": 7}, "--ignore-index 7: occurs in no mask; the values are 0, 1"),
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


def test_the_rarest_value_is_named_with_its_file() -> None:
    with pytest.raises(UserError, match=r"77 has 3 pixel\(s\), e\.g\. in m77\.png"):
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
        ({"binary": True}, Labels((0, 255), threshold=0)),
        ({"binary": True, "ignore_index": 7, "mask_threshold": 5}, None),
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


# -- palette files -------------------------------------------------------------------------


def palette(folder: Path, *lines: str) -> str:
    path = folder / "p.csv"
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return str(path)


@pytest.mark.parametrize(
    ("lines", "values", "is_colour"),
    [
        (("name,r,g,b", "sky, 0,0,128", "", 'car,"255",3,1'), {"sky": 0x80, "car": 0xFF0301}, True),
        (("sky,#0000fF", "car,#00ff00"), {"sky": 0x0000FF, "car": 0x00FF00}, True),
        (("2nd class,300", "car,0"), {"2nd class": 300, "car": 0}, False),
    ],
)
def test_lines_of_a_palette_file(
    tmp_path: Path, lines: tuple[str, ...], values: dict[str, int], is_colour: bool
) -> None:
    found = read_palette(Path(palette(tmp_path, *lines)))
    assert found == (values, is_colour) and list(found[0]) == list(values)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("sky,0", "car,red"), "line 2 is 'car,red'; a line is name,value"),
        (("sky,0", "car,1,2"), "line 2 is 'car,1,2'"),
        (("sky,0,0,0", "car,1,2,256"), "line 2 is 'car,1,2,256'"),
        (("sky,0", "car,#00ff0"), "line 2"),
        (("sky,0", ",1"), "line 2"),
        (("sky,0", ",1,2,3"), "line 2"),
        (("sky,0", ",#000000"), "line 2"),
        (("sky,0", "sky,1"), "line 2 has the name or value of another class"),
        (("sky,0", "car,0"), "line 2 has the name or value of another class"),
        (("sky,0", "car,#000001"), "values and colours mixed"),
        (("sky,0",), "fewer than two classes"),
        ((), "fewer than two classes"),
        (("sky,0", "car,²"), "line 2 is 'car,²'"),
        (("sky,0", "car,0,²,1"), "line 2 is 'car,0,²,1'"),
        (("sky,0", "car," + "9" * 5000), "line 2 is 'car,9999"),
        (("sky,0", "car,70000"), "70000"),
        (("sky,0", "x" * 10**5), "line 2 is 'xxx"),
        (("sky,0", "x" * 200_000 + ",1"), "not a CSV file"),
    ],
)
def test_a_bad_palette_file_is_named(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    path = palette(tmp_path, *lines)
    with pytest.raises(UserError) as caught:
        read_palette(Path(path))
    assert str(caught.value).startswith(f"--palette {path}: ") and said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_palette_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.csv: No such file or directory; use a CSV file"):
        read_palette(tmp_path / "gone.csv")
    (tmp_path / "p.csv").write_bytes(b"a,\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8; use a CSV file"):
        read_palette(tmp_path / "p.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match=r"pipe\.csv: is a pipe, socket or device, not a file"):
        read_palette(tmp_path / "pipe.csv")


INDICES = ((0, 0, 0), (255, 3, 7), (0, 0, 0), (0, 255, 0))


@pytest.mark.parametrize(
    ("lines", "values", "how", "flags", "expected"),
    [
        (("car,7", "sky,0"), [0, 7], {}, {}, Labels((7, 0), names=("car", "sky"))),
        (("sky,0", "car,7"), [0], {}, {"classes": 2}, Labels((0, 7), names=("sky", "car"))),
        (("sky,0", "Ignore,9", "car,7"), [0, 9], {}, {}, Labels((0, 7), ignore=9, names=("sky", "car"))),
        (("sky,0", "void,9", "car,7"), [0, 9], {}, {"ignore_index": 9}, Labels((0, 7), ignore=9, names=("sky", "car"))),
        (("sky,0", "ignore,9", "car,7"), [0, 8], {}, {"ignore_index": 8}, Labels((0, 7), ignore=8, names=("sky", "car"))),
        (("sky,#000080", "car,#ff0000"), [0x80], {"rgb": True}, {}, Labels((0x80, 0xFF0000), rgb=True, names=("sky", "car"))),
        (("car,#ff0307", "sky,#000000"), [0, 1], {"palette": INDICES}, {}, Labels((1, 0), palette=INDICES, names=("car", "sky"))),
        (("car,1", "sky,0"), [0, 1], {"palette": INDICES}, {}, Labels((1, 0), palette=INDICES, names=("car", "sky"))),
    ],
)  # fmt: skip
def test_classes_of_a_palette_file(
    tmp_path: Path, lines: tuple[str, ...], values: list[int], how: dict, flags: dict, expected: Labels
) -> None:  # fmt: skip
    config = DataConfig(palette=palette(tmp_path, *lines), **flags)
    assert choose_labels(masks(values, **how), config) == expected
    assert choose_labels(masks([], **how), config) == expected  # some may be in no mask


@pytest.mark.parametrize(
    ("lines", "how", "flags", "said"),
    [
        (("a,0", "b,1"), {"rgb": True}, {}, "names values, and the masks are colour images"),
        (("a,#000000", "b,#ffffff"), {}, {}, "names colours, and the masks are grey"),
        (("a,#000000", "b,#ffffff"), {"palette": INDICES}, {}, "b's colour is not in the masks' palettes"),
        (("a,0", "b,1"), {}, {"classes": 3}, "--classes 3: "),
        (("a,0", "b,1"), {}, {}, "also contain 7, 8 in 20 pixel(s), e.g. in m7.png; add a line"),
        (tuple(f"n{k},{k}" for k in range(256)), {}, {}, "256 classes; at most 255 are possible"),
    ],
)  # fmt: skip
def test_a_palette_file_must_fit_the_masks(
    tmp_path: Path, lines: tuple[str, ...], how: dict, flags: dict, said: str
) -> None:
    config = DataConfig(palette=palette(tmp_path, *lines), **flags)
    with pytest.raises(UserError) as caught:
        choose_labels(masks([0, 1, 7, 8], **how), config)
    assert said in str(caught.value) and f"{config.palette}" in str(caught.value)


def test_at_most_255_classes(tmp_path: Path) -> None:
    config = DataConfig(palette=palette(tmp_path, *(f"n{k},{k}" for k in range(255))))
    assert choose_labels(masks([0, 1]), config).num_classes == 255


# -- objects -------------------------------------------------------------------------------


@pytest.mark.parametrize("rgb", [False, True])
def test_numbers_of_objects_make_three_classes(rgb: bool) -> None:
    """As many as there are, with gaps, from colours too."""
    found = choose_labels(
        masks([0, 5, *range(300, 900)], rgb=rgb), DataConfig(instances=True, ignore_index=5)
    )
    assert found.class_names == ["background", "object", "border"] and isinstance(
        found, ObjectLabels
    )
    assert (found.ignore, found.rgb, found.separation) == (5, False, (0.5, 0.5))


@pytest.mark.parametrize(
    ("values", "how", "said"),
    [
        ([0, 1, 2], {"lossy": "a.jpg"}, "a.jpg: --instances: lossy compression changes the objects' numbers; save"),
        ([0, 255], {}, "only 0, 255: no object has a number of its own"),
        ([0], {}, "only 0: no object"),
        ([0, 5, 7], {"ignore_index": 5}, "only 0, 5, 7: no object"),
        ([-4, 0, 1], {}, "m-4.png: value -4; expected numbers of objects, 1 or more"),
    ],
)  # fmt: skip
def test_what_can_not_be_objects_is_refused(
    values: list[int], how: dict[str, Any], said: str
) -> None:
    config = DataConfig(instances=True, ignore_index=how.pop("ignore_index", None))
    with pytest.raises(UserError) as caught:
        choose_labels(masks(values, **how), config)
    assert said in str(caught.value)


def test_names_of_objects_classes() -> None:
    """Several names: values contain the class; one: they are numbers."""
    values = masks([0, 65_535, 1_000_001, 2_000_001])
    config = DataConfig(instances=True, class_names=("car", "tree"), ignore_index=65_535)
    found = choose_labels(values, config)
    assert found.names == ("background", "car", "tree", "border") and found.mask_suffix == "tif"
    with pytest.raises(UserError, match=r"m65535\.png: value 65535; expected class \*"):
        choose_labels(values, replace(config, ignore_index=None))
    with pytest.raises(UserError, match=r"m3\.png: value 3; expected class \* 1000000"):
        choose_labels(masks([0, 1_000_001, 3]), config)
    found = choose_labels(values, DataConfig(instances=True, class_names=("cell",)))
    assert found.names == ("background", "cell", "border") and found.mask_suffix == "png"
