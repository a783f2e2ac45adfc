"""Rules that the files of a data set must keep together."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unet_ddp.checks.mask_depths import find_mixture
from unet_ddp.checks.metadata import ImageMetadata, MaskMetadata, ScannedPair
from unet_ddp.checks.rules import (
    check_rules,
    common_values,
    crop_size,
    measure_range,
)
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pair
from unet_ddp.data.preprocessing import PixelRange
from unet_ddp.data.readers.base import Header, ImageFormat
from unet_ddp.errors import UserError


def scanned(
    name: str,
    image: dict[str, Any] | None = None,
    mask: dict[str, Any] | None = None,
    *,
    values: tuple[int, ...] = (0, 1),
    counts: tuple[int, ...] = (5, 7),
    thumbnail: str = base64.b64encode(bytes(range(64))).decode(),
    suffix: str = ".png",
) -> ScannedPair:
    header = Header(
        **({"width": 40, "height": 30, "channels": 3, "dtype": "uint8"} | (image or {}))
    )
    mask_header = Header(
        **({"width": 40, "height": 30, "channels": 1, "dtype": "uint8"} | (mask or {}))
    )
    return ScannedPair(
        Pair(name, Path(f"i/{name}{suffix}"), Path(f"m/{name}.png")),
        ImageMetadata(header, (0, 0), thumbnail),
        MaskMetadata(mask_header, (0, 0), values, counts),
    )


def palette(name: str, colours: str, *values: int) -> ScannedPair:
    """A mask with a palette of black, red, green and blue, that has these values; two by default."""
    known = {"k": (0, 0, 0), "r": (255, 0, 0), "g": (0, 255, 0), "b": (0, 0, 255)}
    used = values or (0, 1)
    return scanned(
        name,
        mask={"palette": tuple(known[each] for each in colours)},
        values=used,
        counts=(5,) * len(used),
    )


def problems(*pairs: ScannedPair, **flags: Any) -> list[str]:
    report = Report(collects=True)
    check_rules(DataConfig(**flags), report, Table.from_scan(pairs))
    return report.problems


GREY, BANDS, DEEP = {"channels": 1}, {"channels": 5}, {"dtype": "uint16"}


@pytest.mark.parametrize(
    ("pairs", "flags", "expected"),
    [
        ([scanned("a"), scanned("b")], {}, []),
        # sizes
        ([scanned("a", {"width": 41}), scanned("b")], {}, ["m/a.png is 40x30, its image 41x30; resize one"]),
        ([scanned("a", {"width": 41}), scanned("b", {"height": 31})], {}, ["m/a.png is", "m/b.png is 40x30, its image 40x31"]),
        ([scanned("a", {"width": 41}), scanned("b")], {"resize_masks": True}, []),
        ([scanned("a", {"width": 30, "height": 40})], {}, ["one of them is rotated by 90 degrees"]),
        ([scanned("a"), scanned("b", {"width": 30, "height": 40})], {"resize_masks": True}, ["m/b.png is 40x30, its image 30x40; one of them is rotated by 90 degrees"]),
        ([scanned("a", {"width": 41, "height": 40}, {"width": 40, "height": 41})], {"resize_masks": True}, []),  # a pixel more
        # kinds of masks
        ([scanned("a"), scanned("b", None, {"is_colour": True}), scanned("c")], {}, ["m/b.png is a colour image, m/a.png is not: masks"]),
        ([scanned("a"), scanned("b", None, {"channels": 3})], {}, ["m/b.png is a colour image"]),
        ([scanned("a"), scanned("b", None, {"channels": 3, "palette": ((0, 0, 0),) * 2})], {}, []),
        # types and channels of images
        ([scanned("a", {"dtype": "uint16"}), scanned("b"), scanned("c"), scanned("d", {"dtype": "int16"}), scanned("e", {"dtype": "uint16"}), scanned("f")], {},
         ["i/a.png (and 1 more) has 16 bit, i/b.png has 8 bit", "i/d.png has int16, i/b.png has 8 bit"]),
        ([scanned("a", GREY), scanned("b")], {}, []),
        ([scanned("a", BANDS), scanned("b"), scanned("c")], {}, ["i/a.png has 5 channels, i/b.png has 3 channels: images"]),
        ([scanned("a", GREY), scanned("b"), scanned("c", {"channels": 2}), scanned("d")], {}, ["i/a.png has 1 channel,", "i/c.png has 2 channels, i/b.png has 3 channels"]),
        # palettes
        ([scanned("a", None, {"palette": ((0, 0, 0), (1, 2, 3))}), scanned("b", None, {"palette": ((0, 0, 0), (255, 2, 3))})], {},
         ["index 1 is #010203 in m/a.png and #ff0203 in m/b.png: palettes"]),
        ([scanned("a", None, {"palette": ((0, 0, 0), (1, 2, 3))}), scanned("b", None, {"palette": ((0, 0, 0), (9, 9, 9))}, values=(0,), counts=(9,))], {}, []),
        ([scanned("a", None, {"palette": ((0, 0, 0), (1, 2, 3))}), scanned("b", None, {"palette": ((0, 0, 0),)})], {}, ["index 1 is #010203 in m/a.png and #000000"]),
        ([scanned("a", None, {"palette": ((0, 0, 0), (1, 2, 3))}), scanned("b", None, {"palette": ((0, 0, 0), (255, 2, 3))})], {"palette": "p.csv"}, []),
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {}, ["#ff0000 is index 1 in m/a.png and 2 in m/b.png: palettes of one"]),
        ([palette("a", "kr"), palette("b", "kgr", 0, 1, 2)], {}, ["index 1 is #ff0000 in m/a.png and #00ff00 in m/b.png"]),
        ([palette("a", "rk", 1), palette("b", "kr", 0)], {}, ["#000000 is index 0 in m/b.png and 1 in m/a.png"]),
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {"palette": "p.csv"}, []),
        ([palette("a", "kr"), palette("b", "krrrr", 0, 1)], {}, []),  # unused indices
        ([palette("a", "kr"), palette("b", "krkk", 0, 2), palette("c", "krkk", 3)], {}, []),  # colours that say nothing
        ([palette("a", "krg"), palette("b", "krg", 2), palette("c", "krgb", 3)], {}, []),
        ([scanned("a", values=(-9, -1)), palette("b", "kr"), palette("c", "kr", -1, 1)], {}, []),  # of no colour
        # palettes, with flags that say which indices are one class or none
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {"mask_threshold": 0}, []),
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {"mask_threshold": 1}, ["#ff0000 is index 1 in m/a.png and 2 in m/b.png"]),
        ([palette("a", "kr"), palette("b", "kg")], {"mask_threshold": 0}, []),
        ([palette("a", "kr"), palette("b", "rk")], {"mask_threshold": 0}, ["#000000 is index 0 in m/a.png and 1 in m/b.png"]),
        ([palette("a", "krg", 0, 1, 2), palette("b", "krr", 0, 1, 2)], {"mask_threshold": 0}, []),  # numbers of objects
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {"ignore_index": 2}, []),
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {"ignore_index": 1}, []),
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {"ignore_index": 0}, ["#ff0000 is index 1 in m/a.png and 2 in m/b.png"]),
        ([palette("a", "krg", 0, 1, 2), palette("b", "krb", 0, 1, 2)], {"ignore_index": 2}, []),
        ([palette("a", "krg", 0, 1, 2), palette("b", "krb", 0, 1, 2)], {"ignore_index": 1}, ["index 2 is #00ff00 in m/a.png and #0000ff in m/b.png"]),
        ([palette("a", "kr"), palette("b", "kgr", 0, 2)], {"classes": 3}, ["#ff0000 is index 1 in m/a.png and 2 in m/b.png"]),  # says not which
        ([palette("a", "kr"), palette("b", "kgr", 0, 1, 2)], {"instances": True}, []),
        # bits
        ([scanned("a", None, {"bits": 1}), scanned("b", values=(0, 255))], {}, ["m/a.png has 1 bit, so its white is 1, and 255 in m/b.png: save all masks with 8 bit"]),
        ([scanned("a", None, {"bits": 1}), scanned("b", values=(0, 255))], {"mask_threshold": 0}, []),
        ([scanned("a", None, {"bits": 1}), scanned("b", values=(0, 255))], {"mask_threshold": 127}, ["m/a.png has 1 bit"]),
        ([scanned("a", None, {"bits": 1}), scanned("b", values=(0, 255))], {"ignore_index": 255}, []),
        ([scanned("a", None, {"bits": 4}, values=(0, 15)), scanned("b", values=(0, 255))], {"mask_threshold": 7}, []),
        ([scanned("a", None, {"bits": 4}, values=(0, 15)), scanned("b", values=(0, 255))], {}, ["m/a.png has 4 bit, so its white is 15, and 255 in m/b.png: save all masks with 8 bit"]),
        ([scanned("a", None, {"bits": 2}, values=(0, 1)), scanned("b", values=(0, 85))], {}, ["m/a.png has 2 bit, so its grey is 1, and 85 in m/b.png: save all masks with 8 bit"]),
        ([scanned("a", None, {"bits": 4}, values=(0, 2)), scanned("b", values=(0, 2))], {}, []),
        ([scanned("a", None, {"bits": 1}), scanned("b", values=(0, 1, 255), counts=(1, 2, 3))], {}, []),
        ([scanned("a", None, {"bits": 1}, values=(0,), counts=(9,)), scanned("b", values=(0, 255))], {}, []),
        ([scanned("a", None, {"bits": 1}), scanned("b", values=(0, 2))], {}, []),
        ([scanned("a", None, DEEP, values=(0, 65535)), scanned("b", values=(0, 255))], {}, ["m/a.png has 16 bit, so its white is 65535, and 255 in m/b.png: save all masks with 8 bit"]),
        ([scanned("a", None, DEEP, values=(0, 32896)), scanned("b", None, DEEP, values=(65535,), counts=(9,)), scanned("c", values=(0, 128))], {}, ["m/a.png has 16 bit, so its grey is 32896, and 128 in m/c.png"]),
        ([scanned("a", None, DEEP, values=(0, 65535)), scanned("b", values=(0, 255))], {"mask_threshold": 0}, []),
        ([scanned("a", None, DEEP, values=(0, 65535)), scanned("b", values=(0, 255))], {"instances": True}, []),
        ([scanned("a", None, DEEP, values=(0, 257)), scanned("b")], {}, []),  # class ids
        ([scanned("a", None, DEEP, values=(257, 514)), scanned("b", None, DEEP), scanned("c", values=(1, 2))], {}, []),
        ([scanned("a", None, DEEP, values=(0, 65535)), scanned("b", None, DEEP), scanned("c", values=(0, 255))], {}, []),  # void
        ([scanned("a", None, DEEP, values=(0, 255)), scanned("b", values=(0, 255))], {}, []),
        # no-data values
        ([scanned("a", {"nodata": -9.0}), scanned("b", {"nodata": -9.0})], {}, []),
        ([scanned("a", {"nodata": -9.0}), scanned("b", {"nodata": -9.5}), scanned("c", {"nodata": -9.5})], {}, ["i/a.png has no-data value -9, i/b.png has -9.5; choose one with --nodata"]),
        ([scanned("a", {"nodata": 0.0}), scanned("b", {"nodata": -0.0})], {}, []),
        ([scanned("a", {"nodata": 1234567.0}), scanned("b", {"nodata": 1234568.0}), scanned("c", {"nodata": 1234568.0})], {}, ["i/a.png has no-data value 1234567, i/b.png has 1234568"]),
        ([scanned("a", {"nodata": -9.0}), scanned("b"), scanned("c")], {}, ["i/a.png has no-data value -9, i/b.png has none"]),
        ([scanned("a", {"nodata": -9.0}), scanned("b")], {"nodata": 3.0}, []),
        # channels that are asked for
        ([scanned("a")], {"channels": 3}, []),
        ([scanned("a")], {"channels": 1}, []),
        ([scanned("a")], {"channels": 4}, []),
        ([scanned("a")], {"channels": 2}, ["--channels 2: i/a.png has 3; leave the flag out"]),
        ([scanned("a"), scanned("b", GREY)], {"channels": 4}, []),
        ([scanned("a", BANDS)], {"channels": 5}, []),
        ([scanned("a", BANDS)], {"channels": 3}, ["--channels 3: i/a.png has 5"]),
        ([scanned("a", BANDS | {"has_alpha": True})], {"channels": 6}, []),
        ([scanned("a", BANDS)], {"channels": 6}, ["--channels 6"]),
        ([scanned("a", {"dtype": "uint16"})], {"channels": 1}, ["--channels 1"]),
        ([scanned("a", GREY | {"dtype": "uint16"})], {"channels": 3}, []),
        ([scanned("a", GREY | {"dtype": "uint16"})], {"channels": 4}, ["--channels 4"]),
        ([scanned("a", {"is_array": True})], {"channels": 1}, ["--channels 1"]),
        ([scanned("a", GREY | {"is_array": True})], {"channels": 3}, []),
        # no scan
    ],
)  # fmt: skip
def test_rules(pairs: list[ScannedPair], flags: dict[str, Any], expected: list[str]) -> None:
    found = problems(*pairs, **flags)
    assert len(found) == len(expected), found
    for line, text in zip(found, expected, strict=True):
        assert text in line


RAMP = tuple((k, k, k) for k in range(256))
RED_RAMP = tuple((k, 0, 0) for k in range(256))
AS_TWO, AS_VOID, AS_THREE = {"mask_threshold": 0}, {"ignore_index": 255}, {"classes": 3}


@pytest.mark.parametrize(
    ("ones", "whites", "expected"),
    [
        ({}, {}, [AS_TWO, AS_VOID, AS_THREE]),
        ({"palette": (RAMP[0], RAMP[255])}, {"palette": RAMP}, [AS_TWO, AS_VOID]),
        ({"palette": (RAMP[0], RAMP[255])}, {"palette": RED_RAMP}, [AS_TWO, AS_VOID, AS_THREE]),
        ({"palette": RAMP[2:]}, {"palette": RAMP}, [AS_TWO]),  # two colours of index 0
        ({"palette": RAMP[::-1]}, {"palette": RAMP[::-1][:1] + RAMP[1:]}, [AS_TWO, AS_VOID, AS_THREE]),
        ({"palette": (RAMP[255], RAMP[0])}, {"palette": RAMP}, []),  # black is 0, and 1
        ({"bits": 1}, {}, [AS_TWO, AS_VOID]),
    ],
)  # fmt: skip
def test_only_flags_that_help_are_advised_for_masks_of_1_and_of_255(
    ones: dict[str, Any], whites: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    pairs = scanned("a", None, ones), scanned("b", None, whites, values=(0, 255))
    table = Table.from_scan(pairs)
    advice = find_mixture(table, common_values(table), DataConfig()) or ""
    for flags in (AS_TWO, AS_VOID, AS_THREE):
        assert (not problems(*pairs, **flags)) == (flags in expected)
        for name, value in flags.items():
            assert (f"--{name.replace('_', '-')} {value}" in advice) == (flags in expected)


def test_masks_of_1_and_of_white_in_16_bit_are_told() -> None:
    pairs = scanned("a"), scanned("b", None, DEEP, values=(0, 65535))
    table = Table.from_scan(pairs)
    assert find_mixture(table, common_values(table), DataConfig()) == (
        "masks of 0 and 1 (m/a.png) and of 0 and 65535 (m/b.png): use --mask-threshold 0 if 1 and 65535 are one "
        "class, --ignore-index 65535 if 65535 is void, or --classes 3"
    )
    both = Table.from_scan([*pairs, scanned("c", None, DEEP, values=(1, 65535))])
    assert find_mixture(both, common_values(both), DataConfig()) is None


def test_a_threshold_is_advised_for_palettes_only_if_it_helps() -> None:
    advice = "save the masks as colour images, or use --mask-threshold 0 if all indices above 0"
    one, other = palette("a", "kr"), palette("b", "kgr", 0, 2)
    assert advice in problems(one, other)[0]
    for refused in ({"classes": 3}, {"class_names": ("x", "y", "z")}):
        assert problems(one, other, **refused)[0].endswith("as colour images")
    assert problems(one, other, palette("c", "gk"))[0].endswith("as colour images")
    assert problems(palette("a", "rk", 1), palette("b", "kr", 0))[0].endswith("as colour images")


def test_palettes_cost_little_for_many_values() -> None:
    """A palette is hashed once for its masks, not once for each of their values."""
    hashes = 0

    class Counted(tuple[tuple[int, int, int], ...]):
        def __hash__(self) -> int:
            nonlocal hashes
            hashes += 1
            return super().__hash__()

    def count(values: tuple[int, ...]) -> int:
        nonlocal hashes
        mask = {"palette": Counted(RAMP)}
        pair = scanned("a", None, mask, values=values, counts=(1,) * len(values))
        table = Table.from_scan([pair])
        hashes = 0
        check_rules(DataConfig(), Report(), table)
        return hashes

    assert count(tuple(range(200))) == count((0, 1))


def test_a_run_stops_at_the_first_problem() -> None:
    with pytest.raises(UserError, match=r"m/a\.png is 40x30"):
        check_rules(
            DataConfig(), Report(), Table.from_scan([scanned("a", {"width": 41, "dtype": "x"})])
        )


@pytest.mark.parametrize(
    ("image", "mask", "is_warned"),
    [
        ((640, 480), (640, 480), False),
        ((641, 481), (320, 240), False),  # half of odd sides, rounded down
        ((641, 481), (321, 241), False),  # or up
        ((641, 481), (80, 60), False),
        ((41, 31), (3, 2), False),
        ((320, 240), (641, 481), False),  # the mask is larger
        ((640, 480), (641, 480), False),
        ((32, 24), (22, 24), True),  # cropped
        ((640, 480), (480, 480), True),
        ((640, 480), (240, 320), True),  # rotated, and half as large
        ((22, 24), (64, 48), True),
    ],
)
def test_masks_whose_proportions_resizing_changes_are_told(
    image: tuple[int, int], mask: tuple[int, int], is_warned: bool
) -> None:
    sides = "width", "height"
    pairs = [
        scanned(name, dict(zip(sides, image, strict=True)), dict(zip(sides, mask, strict=True)))
        for name in "ab"
    ]
    report = Report()
    check_rules(DataConfig(resize_masks=True), report, Table.from_scan([scanned("0"), *pairs]))
    expected = []
    if is_warned:
        expected = [
            "2 masks of other proportions than the image, e.g. m/a.png is {}x{}, its image {}x{}; resizing is right "
            "if it was squashed; if it was cropped or turned, mend it".format(*mask, *image)
        ]
    assert report.warnings == expected


@pytest.mark.parametrize(
    ("pairs", "flags", "expected", "notes"),
    [
        ([scanned("a"), scanned("b", GREY)], {}, ImageFormat(3), []),
        ([scanned("a", GREY)], {}, ImageFormat(1), []),
        ([scanned("a")], {"channels": 1}, ImageFormat(1), []),
        ([scanned("a", {"dtype": "int16"})], {}, ImageFormat(3, "int16"), []),
        ([scanned("a"), scanned("b", {"nodata": 7.5})], {}, ImageFormat(3, nodata=7.5), ["no-data value 7.5, from the files"]),
        ([scanned("a", {"nodata": 0.0})], {}, ImageFormat(3, nodata=0.0), ["no-data value 0, from the files"]),
        ([scanned("a", {"nodata": 7.5})], {"nodata": 3.0}, ImageFormat(3, nodata=3.0), []),
        ([scanned("a", {"has_alpha": True})], {}, ImageFormat(3), ["alpha: the images' transparency is dropped; keep it with --channels 4"]),
        ([scanned("a", {"has_alpha": True})], {"channels": 4}, ImageFormat(4), []),
        ([scanned("a", GREY | {"has_alpha": True})], {}, ImageFormat(1), ["alpha: the images' transparency is dropped"]),
    ],
)  # fmt: skip
def test_the_common_format(
    pairs: list[ScannedPair], flags: dict[str, Any], expected: ImageFormat, notes: list[str]
) -> None:
    report = Report(collects=True)
    assert check_rules(DataConfig(**flags), report, Table.from_scan(pairs)) == expected
    assert len(report.notes) == len(notes)
    assert all(note.startswith(text) for note, text in zip(report.notes, notes, strict=True))
    assert ("--channels 4" in "".join(report.notes)) == ("--channels 4" in "".join(notes))


def test_the_values_of_all_masks() -> None:
    pairs = [
        scanned("a", values=(0, 7), counts=(5, 2)),
        scanned("b", None, {"is_lossy": True}, values=(0, 9), counts=(3, 4)),
        scanned("c", None, {"is_lossy": True}),
    ]
    values = common_values(Table.from_scan(pairs))
    assert values.counts == {0: 13, 1: 7, 7: 2, 9: 4}
    assert values.examples == {0: "m/a.png", 7: "m/a.png", 9: "m/b.png", 1: "m/c.png"}
    assert (values.rgb, values.palette, values.lossy) == (False, None, "m/b.png")
    assert common_values(Table.from_scan([scanned("a", None, {"is_colour": True})])).rgb


RED, GREY_3 = ((0, 0, 0), (255, 0, 0)), ((0, 0, 0), (9, 9, 9), (8, 8, 8))


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([(RED, (0, 1)), (RED, (0, 1))], RED),
        ([(RED, (0, 1)), ((*RED, (7, 7, 7)), (0, 1))], (*RED, (7, 7, 7))),  # padded
        ([(RED, (0, 1)), (GREY_3, (0, 2))], (*RED, (8, 8, 8))),  # unused in one
        ([(GREY_3, (0, 2)), (RED, (0, 1))], (*RED, (8, 8, 8))),
        ([(RED, (0, 1)), (GREY_3, (0, 1))], None),  # two colours of one index
        ([(RED, (0, 1)), (None, (0, 1))], None),
        ([(RED, (0, 1, 5))], RED),
    ],
)
def test_palettes_that_agree_where_they_are_used_are_one(
    masks: list[tuple[Any, tuple[int, ...]]], expected: Any
) -> None:
    pairs = [
        scanned(f"n{k}", None, {"palette": colours}, values=used, counts=(9,) * len(used))
        for k, (colours, used) in enumerate(masks)
    ]
    table = Table.from_scan(pairs)
    assert common_values(table).palette == expected
    if expected is None and all(colours for colours, _ in masks):
        assert common_values(table, ignore=1).palette is not None  # its colour counts not


# -- range ---------------------------------------------------------------------------------


def range_of(images: list[ImageMetadata], channels: int) -> PixelRange | None:
    """The range of all but the last of the images."""
    pairs = [scanned(f"n{k}")._replace(image=image) for k, image in enumerate(images)]
    table = Table.from_scan([*pairs, pairs[0]])
    return measure_range(table, np.arange(len(pairs) + 1) < len(pairs), channels)


def statistics_of(pixels: np.ndarray) -> ImageMetadata:
    wide = pixels.reshape(-1, pixels.shape[-1]).astype(np.float64)
    return ImageMetadata(
        Header(1, 1, 1, "int16"), (0, 0), "", len(wide), wide.min(), wide.max(),
        tuple(wide.sum(0)), tuple((wide**2).sum(0)),
    )  # fmt: skip


def test_the_range_is_that_of_all_pixels(rng: np.random.Generator) -> None:
    """Channels have one range, but each its mean and deviation, as shares of it."""
    sizes = (4, 5), (9, 5), (1, 1)
    images = [rng.integers(-200, 900, (*size, 3)) * [1, 2, 3] for size in sizes]
    measured = range_of([statistics_of(image) for image in images], 3)
    pixels = np.concatenate([image.reshape(-1, 3) for image in images])
    low, high = pixels.min(), pixels.max()
    assert measured is not None and (measured.low, measured.high) == (low, high)
    shares = (pixels - low) / (high - low)
    assert measured.mean == pytest.approx(shares.mean(0))
    assert measured.std == pytest.approx(shares.std(0))


def test_grey_images_among_colour_count_for_each_channel() -> None:
    grey, colour = np.array([[[3]], [[5]]]), np.array([[[1, 2, 3]], [[3, 4, 9]]])
    measured = range_of([statistics_of(grey), statistics_of(colour)], 3)
    assert measured is not None
    assert measured.mean == pytest.approx([(12 / 4 - 1) / 8, (14 / 4 - 1) / 8, (20 / 4 - 1) / 8])


def test_images_without_statistics_have_no_range() -> None:
    assert range_of([ImageMetadata(Header(1, 1, 1, "uint8"), (0, 0), "")], 1) is None
    flat = statistics_of(np.full((4, 1, 1), 7))
    unknown = ImageMetadata(Header(1, 1, 1, "int16"), (0, 0), "")
    assert range_of([flat, unknown], 1) == PixelRange(7.0, 7.0, (0.0,), (1.0,))


# -- sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "flags", "expected"),
    [
        ([(40, 30), (40, 30)], {}, None),
        ([(40, 30), (60, 90), (50, 40)], {}, (50, 40)),
        ([(40, 30), (60, 91)], {}, (50, 60)),  # 60.5 rounded down
        ([(40, 30), (60, 90), (50, 40)], {"scale": 0.5}, (25, 20)),
        ([(400, 3), (600, 4), (500, 5)], {}, (500, 16)),  # no side below 16
        ([(100, 30), (101, 30)], {"scale": 0.1}, None),  # the same at their scale
        ([(40, 30), (40, 30)], {"crop_size": (8, 9)}, (8, 9)),
        ([(40, 30), (40, 30)], {"scale_jitter": (0.5, 2.0)}, (40, 30)),
    ],
)
def test_crops_have_the_median_size(
    sizes: list[tuple[int, int]], flags: dict[str, Any], expected: tuple[int, int] | None
) -> None:
    pairs = [scanned(f"n{k}", {"height": h, "width": w}) for k, (h, w) in enumerate(sizes)]
    assert crop_size(DataConfig(**flags), Table.from_scan(pairs)) == expected
