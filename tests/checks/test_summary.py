"""Lines about a data set, and warnings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.checks.test_rules import scanned
from unet_ddp.checks.near_duplicates import Copies
from unet_ddp.checks.rules import common_values
from unet_ddp.checks.summary import (
    class_pixels,
    describe_images,
    warn_of_classes,
    warn_of_images,
    warn_of_vanishing,
)
from unet_ddp.checks.table import Table
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.resize import resize_nearest, scaled_size
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels


@pytest.mark.parametrize(
    ("sizes", "form", "scale", "expected"),
    [
        ([(30, 40)], ImageFormat(3), 1.0, "data: 7 pairs, 40x30 pixels (40x30 at scale 1), colour, 8 bit"),
        ([(30, 40), (50, 20), (50, 20)], ImageFormat(1, "uint16"), 0.5, "data: 7 pairs, 2 sizes up to 20x50 pixels (10x25 at scale 0.5), grey, 16 bit"),
        ([(30, 40)], ImageFormat(4), 0.1, "data: 7 pairs, 40x30 pixels (4x3 at scale 0.1), 4 bands, 8 bit"),
    ],
)  # fmt: skip
def test_a_line_about_the_images(
    sizes: list[tuple[int, int]], form: ImageFormat, scale: float, expected: str
) -> None:
    pairs = [scanned(f"n{k}", {"height": h, "width": w}) for k, (h, w) in enumerate(sizes)]
    assert describe_images(Table.from_scan(pairs), form, count=7, scale=scale) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (Labels((0, 255)), "classes: 2, mask values 0, 255"),
        (Labels((0, 255), ignore=7), "classes: 2, mask values 0, 255; 7 is ignored"),
        (Labels((0, 255), threshold=0, ignore=9), "classes: 2, mask values 0, 255, thresholded at 0; 9 is ignored"),
        (Labels((0, 7), names=("ground", "car")), "classes: 2, mask values ground (0), car (7)"),
        (Labels((0, 0xFF00), rgb=True, ignore=0xFF), "classes: 2, mask values #000000, #00ff00; #0000ff is ignored"),
        (Labels(tuple(range(16))), f"classes: 16, mask values {', '.join(map(str, range(16)))}"),
        (Labels(tuple(range(17))), f"classes: 17, mask values {', '.join(map(str, range(16)))} and 1 more"),
    ],
)  # fmt: skip
def test_a_line_about_the_classes(labels: Labels, expected: str) -> None:
    assert labels.describe() == expected


def test_images_that_look_wrong_are_a_warning() -> None:
    pairs = [scanned("a"), scanned("b", thumbnail=""), scanned("c", thumbnail="")]
    assert warn_of_images(Table.from_scan(pairs[:1]), None) == []
    blank, copies = warn_of_images(
        Table.from_scan(pairs), Copies([(pairs[0].pair, pairs[1].pair)], 3)
    )
    assert blank == "2 images of one colour, which shows nothing, e.g. i/b.png"
    assert copies.startswith(
        "3 validation images (nearly) the same as training images, e.g. i/a.png as i/b.png"
    )


# -- classes -------------------------------------------------------------------------------


def warnings(
    training: dict[int, int], validation: dict[int, int] | None, labels: Labels
) -> list[str]:
    """Warnings about one training mask and perhaps one for validation."""
    sides = [(name, side) for name, side in (("t", training), ("v", validation)) if side]
    pairs = [scanned(n, values=tuple(side), counts=tuple(side.values())) for n, side in sides]
    split = Split(Pairs([pairs[0].pair]), Pairs(pair.pair for pair in pairs[1:]), "")
    result = Table.from_scan(pairs)
    return warn_of_classes(result, common_values(result), labels, split)


THREE = Labels((0, 5, 9), names=("ground", "car", "tree"))
EVEN = {0: 10, 5: 10, 9: 10}


@pytest.mark.parametrize(
    ("training", "validation", "labels", "expected"),
    [
        (EVEN, EVEN, THREE, []),
        (EVEN, None, THREE, []),
        ({0: 10, 5: 10}, EVEN, THREE, ["class tree occurs in validation only: it can't be learnt"]),
        ({0: 10}, EVEN, THREE, ["class car, tree occurs in validation only"]),
        (EVEN, {0: 10, 9: 1}, THREE, ["class car does not occur in validation: it gets no score"]),
        ({0: 10, 5: 10}, {0: 10, 5: 10}, THREE, ["class tree occurs in no mask: it can be neither learnt nor scored"]),
        # 5e-4 of all pixels, training and validation together
        ({0: 10000, 5: 4, 9: 10000}, {0: 1, 5: 6, 9: 1}, THREE, ["class car has 10 pixels in all, e.g. in m/t.png: if that is a mistake"]),
        ({0: 9995, 5: 5, 9: 9995}, {0: 1, 5: 5, 9: 1}, THREE, ["class car has 10 pixels"]),
        ({0: 9990, 5: 5, 9: 9994}, {0: 3, 5: 5, 9: 3}, THREE, []),
        (dict.fromkeys(range(5), 1) | {9: 100000}, None, Labels((0, 1, 2, 3, 4, 9)), ["class 0 has 1", "class 1 has 1", "class 2 has 1"]),
        # more than 85 % foreground, of two classes
        ({7: 14, 0: 86}, {0: 99, 7: 1}, Labels((7, 0)), ["86% of the pixels are class 0: if that is the background, leave --invert out"]),
        ({0: 14, 7: 86}, {0: 99, 7: 1}, Labels((0, 7)), ["86% of the pixels are class 7: if that is the background, use --invert"]),
        ({0: 15, 7: 85}, {0: 1, 7: 99}, Labels((0, 7)), []),
        ({0: 1, 5: 98, 9: 1}, EVEN, THREE, []),
        # a threshold: the few pixels of a value are no class
        ({0: 100000, 3: 50000, 255: 1}, {0: 5, 255: 5}, Labels((0, 255), threshold=2), []),
    ],
)  # fmt: skip
def test_classes_that_look_wrong_are_a_warning(
    training: dict[int, int], validation: dict[int, int], labels: Labels, expected: list[str]
) -> None:
    found = warnings(training, validation, labels)
    assert len(found) == len(expected), found
    for line, text in zip(found, expected, strict=True):
        assert text in line


def test_classes_of_objects_that_never_occur_are_named_but_their_border_is_not() -> None:
    labels = ObjectLabels.of(("car", "tree"))
    (line,) = warnings({0: 9, 1_000_001: 9, 2_000_001: 9}, {0: 9, 1_000_001: 9}, labels)
    assert line == "class tree does not occur in validation: it gets no score"


def test_long_lists_of_classes_are_cut() -> None:
    many = dict.fromkeys(range(18), 10)
    labels = Labels(tuple(many))
    (line,) = warnings({0: 10}, many, labels)
    assert "class 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 1 more occurs" in line
    (line,) = warnings({0: 10, 1: 10}, many, labels)
    assert "15, 16, 17 occurs" in line


ROUND = "fix the mask, or use --round-masks with "


@pytest.mark.parametrize(
    ("counts", "how", "said"),
    [
        ({0: 900, 0x0101FF: 600, 0x0102FF: 12}, {}, f"classes #0102ff (24 pixels) and #0101ff (1200 pixels) have nearly one colour, the first e.g. in m/t.png: if they are one class, {ROUND}--classes 2 or a --palette;"),
        ({0x7F8081: 9, 0x808080: 800, 0x818281: 9, 0xFF0000: 600}, {}, f"{ROUND}--classes 2 or a --palette"),
        ({0: 900, 0x0101FF: 600, 0x0102FF: 12, 0xFF0000: 12}, {}, f"{ROUND}a --palette"),  # two classes as rare
        ({0: 90000, 0x0101FF: 600, 0x0102FF: 1, 0xFF0000: 9}, {}, f"{ROUND}a --palette"),  # a class as rare as noise
        ({0: 900, 0x0101FF: 600, 0x0102FF: 13}, {}, None),  # too many for a stray edge
        ({0: 900, 0x0101FF: 600, 0x0401FF: 4}, {}, None),  # three levels
        ({0: 900, 0x010000: 4, 0x020100: 4, 0x3F0000: 4}, {}, None),  # small ids
        ({0: 900, 0x010000: 4, 0x020000: 4, 0xFF0000: 600}, {}, None),  # ids in a channel
        ({0: 900, 0x010101: 4, 0xFFFFFF: 600}, {}, None),  # ids as greys
        ({0: 900, 0x0101FF: 600}, {"values": (0, 0x0101FF, 0x0102FF)}, None),  # mended since
        ({0: 900, 0x0101FF: 600, 0x0102FF: 4}, {"names": ("a", "b", "c")}, None),
        ({0: 600, 0x0101FF: 600}, {"threshold": 127}, None),
        ({0: 900, 0x0101FF: 600, 0x0102FF: 4}, {"rounded": True}, None),
        ({0: 900, 200: 600, 201: 4}, {"rgb": False}, None),
        ({0: 900, 200: 600, 201: 4}, {"rgb": False, "palette": ((9, 9, 9), *[(200, 8, 7)] * 255)}, None),
    ],
)  # fmt: skip
def test_a_rare_colour_that_is_nearly_another_is_a_warning(
    counts: dict[int, int], how: dict[str, Any], said: str | None
) -> None:
    found = warnings(counts, counts, Labels(**{"values": (*counts,), "rgb": True, **how}))
    near = [line for line in found if "nearly one colour" in line]
    assert len(near) == (said is not None)
    assert said is None or said in near[0]


@pytest.mark.parametrize(
    ("labels", "scale", "expected"),
    [
        (Labels((0, 5, 9)), 1.0, []),
        (Labels((0, 5, 9)), 0.2, []),  # 2 or more of 50 pixels
        (Labels((0, 5, 9)), 0.1, ["--scale 0.1 leaves nearly nothing of class 5 in 2 of 3 images: use a larger --scale"]),
        (Labels((0, 5, 9)), 0.04, ["--scale 0.04 leaves nearly nothing of class 5 in 3 of 3 images, 9 in 1 of 1 image: use a larger --scale"]),
        (Labels((0, 1), threshold=4), 0.1, []),  # 5 and 9 are one class
        (Labels((0, 9), ignore=5), 0.1, []),
    ],
)  # fmt: skip
def test_classes_that_a_scale_leaves_nothing_of_are_a_warning(
    labels: Labels, scale: float, expected: list[str]
) -> None:
    pairs = [
        scanned("a", values=(0, 5), counts=(99_000, 50)),
        scanned("b", values=(0, 5, 9), counts=(99_000, 60, 1000)),
        scanned("c", values=(0, 5), counts=(99_000, 220)),
        scanned("d", values=(0,), counts=(99_000,)),
    ]
    assert warn_of_vanishing(Table.from_scan(pairs), labels, scale) == expected


@pytest.mark.parametrize("radius", [2, 3, 4, 6, 9, 14, 20])
@pytest.mark.parametrize("scale", [0.5, 0.25, 0.1])
def test_what_a_scale_leaves_is_told_from_areas(radius: float, scale: float) -> None:
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:120, :120]
    pairs, left = [], []
    for k in range(40):
        centre = random.uniform(30, 90, 2)
        mask = np.hypot(rows - centre[0], columns - centre[1]) < radius
        left.append(resize_nearest(mask, scaled_size(120, 120, scale)).sum())
        counts = (int((~mask).sum()), int(mask.sum()))
        pairs.append(scanned(f"{k}", values=(0, 1), counts=counts))
    is_warned = bool(warn_of_vanishing(Table.from_scan(pairs), Labels((0, 1)), scale))
    assert is_warned >= (np.median(left) == 0)
    assert is_warned <= (np.median(left) <= 2)


def test_pixels_of_each_class() -> None:
    pairs = [
        scanned("a", values=(0, 5, 9), counts=(1, 2, 3)),
        scanned("b", values=(5, 9), counts=(10, 20)),
        scanned("c", values=(0,), counts=(100,)),
    ]
    labels = Labels((9, 0), ignore=5)
    result = Table.from_scan(pairs)
    assert class_pixels(result, labels, Pairs([pairs[0].pair, pairs[1].pair])) == [23, 1]
    assert class_pixels(result, labels, Pairs()) == [0, 0]
    with pytest.raises(UserError, match=r"m/b\.png: unknown mask value 5"):
        class_pixels(result, Labels((9, 0)), Pairs([pairs[2].pair, pairs[1].pair]))


def test_objects_that_may_be_classes_are_a_warning() -> None:
    labels = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.5, 0.5))
    (line,) = warnings({0: 10, 3: 5}, {0: 10, 4: 5}, labels)
    assert "only the values 0, 3, 4: if they are classes, leave it out" in line
    assert warnings(dict.fromkeys(range(40), 3), {0: 10, 1: 5}, labels) == []
    assert labels.describe().startswith("classes: background, object, border, from")
