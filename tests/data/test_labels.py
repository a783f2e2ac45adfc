"""Mask values to class ids and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, Colour, pack_colour, unpack_colour
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.overlap.labels import OverlapLabels

LABELS = [
    Labels((0, 255)),
    Labels((255, 0)),
    Labels((0, 1)),
    Labels((0, 1, 2, 7), ignore=9),
    Labels((0, 65535)),
    Labels((0x000000, 0xFF0000, 0x00FF80), rgb=True),
    Labels((0, 1), palette=((0, 0, 0), (255, 0, 0)), names=("ground", "car")),
    Labels((0, 200), palette=((9, 9, 9), *[(0, 0, 0)] * 199, (7, 8, 9)), threshold=5),
]


OBJECTS = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.5, 0.5), ignore=99)


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_a_written_mask_reads_back_as_the_same_classes(
    labels: Labels, tmp_path: Path, rng: np.random.Generator
) -> None:
    ids = rng.integers(0, labels.num_classes, (11, 13)).astype(np.uint8)
    for name in ("mask.png", "mask.tif"):
        labels.to_image(ids).save(tmp_path / name)
        assert (labels.to_ids(read_mask(tmp_path / name), tmp_path) == ids).all()
    assert Labels.from_dict(labels.to_dict()) == labels


def test_a_checkpoint_keeps_a_threshold_of_32_bits() -> None:
    labels = Labels((0, 255), threshold=20_000_000)  # of class * 1000000 + number
    assert Labels.from_dict(labels.to_dict()) == labels


@pytest.mark.parametrize("kind", ["objects", "json:JSONDecoder", ["classes"], None])
def test_labels_of_a_kind_that_the_package_has_not_are_refused_and_start_no_code(
    kind: object,
) -> None:
    expected = r"^kind: .*; expected one of classes, numbered objects, overlapping classes$"
    with pytest.raises(UserError, match=expected):
        Labels.from_dict({**Labels((0, 255)).to_dict(), "kind": kind})


@pytest.mark.parametrize("labels", [OBJECTS, OverlapLabels.of(3, None, rgb=False, ignore=None)])
def test_the_kind_of_labels_is_saved_and_not_guessed_from_their_fields(labels: Labels) -> None:
    plain = labels.to_dict()
    assert Labels.from_dict(plain) == labels
    with pytest.raises(UserError, match=r"^kind: None; expected one of classes, "):
        Labels.from_dict({k: v for k, v in plain.items() if k != "kind"})


@pytest.mark.parametrize("labels", LABELS[:7], ids=str)
def test_a_written_mask_is_visible(labels: Labels) -> None:
    """Masks of 0 and 1 look black unless a palette shows them."""
    ids = np.arange(labels.num_classes, dtype=np.uint8)[None]
    image = labels.to_image(ids)
    shown = np.asarray(image if image.mode == "I;16" else image.convert("RGB")).astype(int)
    seen = [shown[0, k].max() for k in range(labels.num_classes) if labels.values[k]]
    assert min(seen) >= 64


@pytest.mark.parametrize(
    ("values", "mode"),
    [((0, 127), "P"), ((0, 128), "L"), ((0, 255), "L"), ((0, 256), "I;16")],
)
def test_dark_values_get_a_palette_and_large_ones_16_bit(
    values: tuple[int, ...], mode: str
) -> None:
    image = Labels(values).to_image(np.array([[1]], np.uint8))
    assert image.mode == mode and image.getpixel((0, 0)) == values[1]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_pixels_without_data_have_the_value_of_no_class(labels: Labels) -> None:
    """In a PNG as in a GeoTIFF, beside few classes or many."""
    ids = np.array([[IGNORE_ID, 0, 1]], np.uint8)
    values = labels.to_values(ids)
    assert np.array_equal(values, np.asarray(labels.to_image(ids)))
    if not labels.rgb:
        assert values.tolist() == [[labels.nodata, *labels.values[:2]]]
    codes = values.astype(np.int32)
    if labels.rgb:
        codes = codes[..., 0] << 16 | codes[..., 1] << 8 | codes[..., 2]
    assert labels.from_file(codes, Path("mask.png")).tolist() == ids.tolist()


def test_pixels_without_data_are_in_no_region_of_255_classes() -> None:
    mask = np.array([[0, 254, IGNORE_ID]], np.uint8)
    (found,) = Labels(tuple(range(255))).regions(mask)
    assert found.counted.tolist() == [[True, True, False]]


def test_a_palette_mask_has_its_own_colours() -> None:
    labels = Labels((3, 1), palette=((9, 9, 9), (1, 2, 3), (9, 9, 9), (40, 50, 60)))
    image = labels.to_image(np.array([[0, 1]], np.uint8))
    assert image.getpalette()[:15] == [0, 0, 0, 1, 2, 3, 0, 0, 0, 40, 50, 60, 0, 0, 0]
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [3, 1]


def test_colours_to_draw_classes_with() -> None:
    voc = [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128)]  # of the VOC devkit
    assert Labels((0, 1, 2, 3, 4)).colours == voc
    many = Labels(tuple(range(16))).colours
    assert many[8] == (64, 0, 0) and many[15] == (192, 128, 128)
    assert Labels((5, 9)).colours == [(0, 0, 0), (255, 255, 255)]
    assert Labels((0x010203, 0xFF8000), rgb=True).colours == [(1, 2, 3), (255, 128, 0)]
    palette = ((9, 9, 9), (7, 7, 7))
    assert Labels((0, 1), palette=palette).colours == list(palette)
    assert Labels((1, 2), palette=palette).colours == [(7, 7, 7), (0, 0, 0)]  # none for 2
    assert Labels((5, 6, 7), palette=palette).colours == voc[:3]  # all the same: not the palette's
    assert unpack_colour(0x0A0B0C) == (10, 11, 12)
    assert pack_colour((10, 11, 12)) == 0x0A0B0C


def test_classes_are_called_by_their_names_or_values() -> None:
    assert Labels((0, 7), names=("ground", "car")).class_names == ["ground", "car"]
    assert Labels((0, 7)).class_names == ["0", "7"]
    assert Labels((0, 0xFF), rgb=True).class_names == ["#000000", "#0000ff"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_values_become_their_places_among_the_classes(dtype: type) -> None:
    labels = Labels((7, 0, 200), ignore=9)
    codes = np.array([[0, 7], [9, 200]], dtype)
    ids = labels.to_ids(codes, Path("m.png"))
    assert ids.tolist() == [[1, 0], [IGNORE_ID, 2]] and ids.dtype == np.uint8
    ids[0, 0] = 3  # writable: pixels without data are ignored in place
    assert labels.to_ids(np.zeros((0, 3), dtype), Path("m.png")).shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
@pytest.mark.parametrize("strange", [1, 8, 255])
def test_an_unknown_value_is_named(dtype: type, strange: int) -> None:
    labels = Labels((0, 7), ignore=9)
    codes = np.array([[0, 7, strange, strange]], dtype)
    with pytest.raises(UserError) as caught:
        labels.to_ids(codes, Path("m.png"))
    assert str(caught.value) == (
        f"m.png: unknown mask value {strange} (2 pixels); expected 0, 7. Fix the mask or retrain"
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_unknown_values_are_all_named_with_their_pixels_if_these_are_known(dtype: type) -> None:
    """Issue: a list of the different values in a mask was counted as its pixels, and one of several was named."""
    labels = Labels((0, 7))
    for codes, said in (
        ([[0, 7, 8, 7]], "unknown mask value 8 (1 pixel); expected 0, 7."),
        ([[9, 8], [0, 9]], "unknown mask values 8, 9 (3 pixels); expected"),
        ([0, 7, 8], "unknown mask value 8; expected"),
        ([1, 2, 3, 4, 5, 6], "unknown mask values 1, 2, 3, 4 and 2 more; expected"),
    ):
        with pytest.raises(UserError) as caught:
            labels.to_ids(np.array(codes, dtype), Path("m.png"))
        assert said in str(caught.value)
    grey = Labels((0, 0xFF0000), rgb=True)
    with pytest.raises(UserError, match="unknown mask value #00ff00;"):
        grey.to_ids(np.array([0xFF00], np.int32), Path("m.png"))


@pytest.mark.parametrize("ignore", [0, 3, 255])
@pytest.mark.parametrize("values", [(0, 255), (255, 0)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_what_is_ignored_is_on_no_side_of_a_threshold(
    values: tuple[int, int], ignore: int, dtype: type
) -> None:
    codes = np.array([[0, 1, 3, 127, 128, 200, 255]], dtype)
    labels = Labels(values, threshold=127, ignore=ignore)
    ids = labels.to_ids(codes, Path("m.png"))
    bright = 1 if values == (0, 255) else 0
    expected = np.where(codes > 127, bright, 1 - bright)
    assert (ids[codes != ignore] == expected[codes != ignore]).all()
    assert (ids[codes == ignore] == IGNORE_ID).all()


def test_a_colour_is_as_bright_as_its_brightest_channel() -> None:
    labels = Labels((0, 0xFFFFFF), rgb=True, threshold=127)
    codes = np.array([[0x7F7F7F, 0x800000, 0x008000, 0x000080]], np.int32)
    assert labels.to_ids(codes, Path("m.png")).tolist() == [[0, 1, 1, 1]]


BLACK_REST = ((255, 255, 255), (128, 0, 0), *[(0, 0, 0)] * 254)  # as many programs save palettes


@pytest.mark.parametrize(
    ("labels", "colours", "values"),
    [
        (Labels((0, 7), ignore=255), [0, 0x070707, 0xFFFFFF], [0, 7, 255]),
        (Labels((0, 0xFFFFFF), rgb=True), [0, 0xFFFFFF], [0, 0xFFFFFF]),
        (Labels((0, 1), palette=((0, 0, 0), (128, 0, 0))), [0x800000, 0], [1, 0]),
        (Labels((0, 1), palette=BLACK_REST, ignore=255), [0xFFFFFF, 0, 0x800000], [0, 255, 1]),
        (Labels((0, 255), threshold=127), [0x7F0000, 0x808080, 0x000080], [127, 128, 128]),
        (Labels((0, 200), rounded=True), [0xC8C8C7, 0x030201, 0xFF0000], [200, 2, 85]),
        (ObjectLabels.of(("cell",)), [0, 1, 0xFF0000], [0, 1, 0xFF0000]),
    ],
    ids=["grey", "colours", "palette", "black_rest", "threshold", "rounded", "objects"],
)
def test_colours_are_the_values_of_classes(
    labels: Labels, colours: list[int], values: list[int]
) -> None:
    found = labels.from_colours(np.array([colours], np.int32), Path("m.png"))
    assert found.tolist() == [values]


def test_a_colour_of_two_classes_is_refused_where_it_occurs() -> None:
    labels = Labels((0, 1, 2), palette=BLACK_REST, ignore=255)
    codes = np.array([[0xFFFFFF, 0x800000]], np.int32)
    assert labels.from_colours(codes, Path("m.png")).tolist() == [[0, 1]]
    codes[0, 0] = 0
    expected = r"m\.png: #000000 is the colour of 2 and of 255; save the mask with its palette"
    with pytest.raises(UserError, match=expected):
        labels.from_colours(codes, Path("m.png"))


@pytest.mark.parametrize("palette", [None, ((0, 0, 0), (128, 0, 0))])
def test_a_colour_of_no_class_is_named_as_one(palette: tuple[Colour, ...] | None) -> None:
    labels = Labels((0, 1), palette=palette)
    with pytest.raises(UserError, match=r"m\.png: unknown mask colour #010203; expected #000000"):
        labels.from_colours(np.array([[0, 0x010203]], np.int32), Path("m.png"))


# -- objects ---------------------------------------------------------------------------------


def test_numbers_become_background_body_and_border(tmp_path: Path) -> None:
    """With gaps in the numbers, and a border across no ignored pixel."""
    numbers = np.array([[0, 0, 7, 7, 300, 300, 99, 8, 8]], np.int32)
    ids = OBJECTS.to_ids(numbers, tmp_path)
    assert ids.tolist() == [[0, 0, 1, 2, 2, 1, IGNORE_ID, 1, 1]]
    assert OBJECTS.to_ids(numbers[0], tmp_path).tolist() == [0, 0, 1, 1, 1, 1, 255, 1, 1]
    assert OBJECTS.find_numbers(numbers).tolist() == [[0, 0, 7, 7, 300, 300, 0, 8, 8]]
    with pytest.raises(UserError, match=r"a\.png: value -3; expected numbers of objects, 1"):
        OBJECTS.to_ids(np.array([[-3, 1]], np.int32), Path("a.png"))


def test_labels_of_objects_survive_a_checkpoint_and_keep_numbers_in_masks() -> None:
    assert Labels.from_dict(OBJECTS.to_dict()) == OBJECTS
    plain = OBJECTS.to_dict()
    for separation in ([0.5], [0.5, 1.0], [0, 0.5], "ab"):
        with pytest.raises(UserError, match="separation"):
            Labels.from_dict({**plain, "separation": separation})
    with pytest.raises(
        UserError, match=r"names \['a', 'b', 'c'\]: expected background, classes of objects, border"
    ):
        Labels.from_dict({**plain, "names": ["a", "b", "c"]})
    numbers = np.array([[0, 65_535]], np.uint16)
    assert np.array_equal(np.asarray(OBJECTS.to_image(numbers)), numbers)


CLASSES = ObjectLabels.of(("car", "tree"), ignore=65_535)


def test_values_become_background_bodies_and_one_border(tmp_path: Path) -> None:
    """Borders between classes too; the number 7 is a car and a tree."""
    row = [0, 0, 1_000_007, 1_000_007, 2_000_007, 2_000_007, 2_000_009, 65_535, 1_000_001]
    assert CLASSES.class_names == ["background", "car", "tree", "border"]
    ids = CLASSES.to_ids(np.array([row], np.int32), tmp_path)
    assert ids.tolist() == [[0, 0, 1, 3, 3, 3, 3, IGNORE_ID, 1]]
    alone = CLASSES.to_ids(np.array([[0, 0, 2_000_001, 2_000_001]], np.int32), tmp_path)
    assert alone.tolist() == [[0, 0, 2, 2]]
    values = CLASSES.to_ids(np.array(row, np.int32), tmp_path)
    assert values.tolist() == [0, 0, 1, 1, 2, 2, 2, IGNORE_ID, 1]
    assert CLASSES.find_numbers(np.array([row], np.int32)).tolist() == [[*row[:7], 0, row[8]]]
    assert not CLASSES.to_ids(np.zeros((2, 2), np.uint8), tmp_path).any()


@pytest.mark.parametrize("value", [-1_000_001, 7, 999_999, 1_000_000, 3_000_001])
def test_a_value_without_a_known_class_is_refused(value: int) -> None:
    said = (
        rf"a\.tif: value {value}; expected class \* 1000000 \+ number, both from 1 on, of car, tree"
    )
    with pytest.raises(UserError, match=said):
        CLASSES.to_ids(np.array([[0, 1_000_001, value]], np.int32), Path("a.tif"))


def test_values_of_objects_are_split_and_joined() -> None:
    values = np.array([0, 1_000_002, 2_000_000, 2_999_999], np.int32)
    classes, numbers = CLASSES.split_values(values)
    assert classes.tolist() == [0, 1, 2, 2] and numbers.tolist() == [0, 2, 0, 999_999]
    joined = CLASSES.join_values(classes.astype(np.uint8), numbers)
    assert joined.dtype == np.int32 and np.array_equal(joined, values)
    assert OBJECTS.split_values(values)[1] is values
    with pytest.raises(UserError, match="1000000 objects; at most 999999 can have classes"):
        CLASSES.join_values(classes, numbers + 1)


MANY = tuple(f"c{k}" for k in range(254))


@pytest.mark.parametrize("names", [("car", "car"), ("border",), ("background", "car"), MANY])
def test_classes_of_objects_have_different_names(names: tuple[str, ...]) -> None:
    assert ObjectLabels.of(MANY[1:]).num_classes == IGNORE_ID
    with pytest.raises(
        UserError, match=f"classes {names[0]}.* at most 253, all different and none "
    ):
        ObjectLabels.of(names)
    with pytest.raises(UserError, match=r"names \['background', 'border'\]"):
        ObjectLabels.of(())


@pytest.mark.parametrize(
    ("labels", "is_doubted"),
    [
        (Labels((0, 1, 255)), True),
        (Labels((*range(21), 255)), True),
        (Labels((0, 5, 6, 18, 255)), True),  # some classes of many
        (Labels((0, 40, 80, 255)), False),
        (Labels((0, 1, 255), names=("ground", "car", "sky")), False),
        (Labels((0, 1), ignore=255), False),
        (Labels((0, 255)), False),
        (Labels((0, 128, 255)), False),
        (Labels((0, 1, 2)), False),
        (Labels((0, 1, 255), rgb=True), False),
    ],
    ids=str,
)
def test_255_far_above_the_other_classes_is_doubted(labels: Labels, is_doubted: bool) -> None:
    """In many data sets it marks pixels that nobody labelled; nothing is ignored unasked."""
    lines = labels.doubt(labels.values, "")
    assert len(lines) == is_doubted
    assert all("--ignore-index 255" in line for line in lines)


@pytest.mark.parametrize("values", [(0, 255), (0, 7, 9), (0, 300), (0, 0xFF0000)])
def test_an_image_of_ids_of_any_type(values: tuple[int, ...]) -> None:
    """Issue: Pillow refused int64, which argmax gives, with a TypeError."""
    labels = Labels(values, rgb=max(values) > 65535)
    ids = np.array([[0, 1, 1], [1, 0, 0]], np.uint8)
    expected = np.asarray(labels.to_image(ids))
    others: list[Any] = [ids.astype(int), ids.astype(np.float32), ids == 1, ids.tolist()]
    for same in others:
        assert np.array_equal(np.asarray(labels.to_image(same)), expected)
    of_no_class = np.asarray(labels.to_image(np.full((2, 3), 255, np.uint8)))
    assert np.array_equal(np.asarray(labels.to_image(np.full((2, 3), 256))), of_no_class)
    assert np.array_equal(np.asarray(labels.to_image(np.full((2, 3), -1))), of_no_class)
