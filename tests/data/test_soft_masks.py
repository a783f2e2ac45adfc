"""Values that are classes, and those that look like soft edges or lossy compression."""

from __future__ import annotations

from typing import Any

import pytest

from tests.data.test_label_rules import masks
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import choose_labels, warn_soft_edges
from unet_ddp.errors import UserError


def test_a_dozen_values_are_shown() -> None:
    assert masks([0]).show(list(range(12))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert masks([0]).show(list(range(13))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1 more"


def soft(ends: int, between: int, count: int = 98) -> dict[int, int]:
    """Values from 0 to 2*count+2, with few pixels between its ends."""
    counts = dict.fromkeys(range(2, 2 * count + 2, 2), between)
    return {0: ends, **counts, 2 * count + 2: ends}


@pytest.mark.parametrize(
    ("counts", "how", "said"),
    [
        (soft(9000, 1), {}, "100 different values in the masks (0 to 198), nearly all close to 0 or 198, probably from soft edges: use --mask-threshold 99"),
        (soft(9000, 1), {"lossy": "a.jpg"}, "a.jpg: 100 different values in the masks (0 to 198), nearly all close to 0 or 198, probably from lossy compression"),
        (soft(9000, 1, 1), {"lossy": "a.jpg"}, "a.jpg: 3 different values in the masks (0 to 4), nearly all"),
        (soft(10, 10), {"lossy": "a.jpg"}, "use --classes N --round-masks for N classes, or save masks as PNG with one value per class"),
        (soft(10, 10, 254), {}, "256 different values in the masks (0 to 510): too many for classes; if they are numbers of objects, use --instances"),
        (dict.fromkeys(range(65), 1), {"rgb": True}, "the masks: 65 different colours, probably from soft edges"),
        (dict.fromkeys(range(65), 1), {"rgb": True, "lossy": "a.jpg"}, "a.jpg: 65 different colours, probably from lossy compression"),
        ({0: 9000} | dict.fromkeys(range(1, 400), 9), {"rgb": True, "lossy": "a.jpg"}, "a.jpg: 400 different colours, probably from lossy compression; use --classes N --round-masks"),
        ({0: 9000} | dict.fromkeys(range(1, 400), 9), {"rgb": True}, "400 different colours, none common; if they are photographs of objects cut out, use --mask-threshold 0 for one class"),
        ({0xFFFFFF: 9000} | dict.fromkeys(range(1, 400), 9), {"rgb": True}, "photographs of objects cut out, save masks as PNG"),
        (dict.fromkeys(range(400), 9), {"rgb": True, "lossy": "a.jpg"}, "a.jpg: 400 different colours, none common; if they are photographs, give the folder of masks as --masks"),
        ({0: 9000, 0xFF: 4000} | dict.fromkeys(range(1, 200), 9), {"rgb": True}, "201 different colours, probably from soft edges"),
        (dict.fromkeys((0, 0x10101, 0xFEFEFE, 0xFFFFFF), 9), {"rgb": True, "lossy": "a.jpg"}, "a.jpg: 4 different colours, probably from lossy compression; use --classes N --round-masks for N classes, or --mask-threshold 127 for two, dark and bright, or save masks as PNG with one colour per class"),
    ],
)  # fmt: skip
def test_soft_masks_are_refused_with_what_they_look_like(
    counts: dict[int, int], how: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        choose_labels(masks(counts, **how), DataConfig())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "how"),
    [
        (soft(9000, 1, 62), {}),  # 64 values may be classes
        (soft(10, 10, 98), {}),  # 100 values that are not near two ends
        ({0: 500, 255: 500}, {"lossy": "a.jpg"}),
        (dict.fromkeys(range(64), 1), {"rgb": True}),
        ({0: 500, 0xFFFFFF: 500}, {"rgb": True, "lossy": "a.jpg"}),
    ],
)
def test_hard_masks_are_not_refused(counts: dict[int, int], how: dict[str, Any]) -> None:
    assert choose_labels(masks(counts, **how), DataConfig()).num_classes == len(counts)


@pytest.mark.parametrize(
    ("dark", "between", "bright", "is_soft"),
    [
        (45, 10, 45, True),  # at least 90 % in the outer quarters of the range, ends included
        (44, 11, 45, False),
        (9000, 60, 40, True),  # bright ones at least 40 % of what is not dark
        (9000, 61, 40, False),
    ],
)
def test_what_counts_as_near_black_and_white(
    dark: int, between: int, bright: int, is_soft: bool
) -> None:
    values = masks(dict.fromkeys(range(101), 0) | {25: dark, 50: between, 75: bright})
    if is_soft:
        with pytest.raises(UserError, match="nearly all close to 0 or 100"):
            choose_labels(values, DataConfig())
    else:
        assert choose_labels(values, DataConfig()).num_classes == 101


# CamVid's 32 colours; PASCAL VOC's first 21 and its void, whose bits make steps of 64.
CAMVID = [
    "404080", "c00080", "008040", "800000", "004040", "4000c0", "4080c0", "c08080", "808000",
    "404000", "80c080", "80c000", "000040", "c00040", "808040", "c080c0", "800080", "804080",
    "8080c0", "0000c0", "c08040", "c0c080", "c0c0c0", "808080", "40c000", "404080", "c00000",
    "4080c0", "804040", "40c080", "c04000", "000000",
]  # fmt: skip
VOC = [
    "000000", "800000", "008000", "808000", "000080", "800080", "008080", "808080", "400000",
    "c00000", "408000", "c08000", "400080", "c00080", "408080", "c08080", "004000", "804000",
    "00c000", "80c000", "004080", "e0e0c0",
]  # fmt: skip


@pytest.mark.parametrize("first", [0, 5, 11])
@pytest.mark.parametrize("colours", [CAMVID, VOC])
@pytest.mark.parametrize("decay", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_honest_colours_are_no_soft_edges(
    colours: list[str], first: int, decay: float, is_indexed: bool
) -> None:
    """However rare some of them are; 0 and rare class ids are none either."""
    codes = list(dict.fromkeys(int(colour, 16) for colour in colours))
    values = list(range(len(codes))) if is_indexed else codes
    order = values[first:] + values[:first]
    counts = {value: int(1e9 * decay**k) + 1 for k, value in enumerate(order)}
    how: dict[str, Any] = {"rgb": True}
    if is_indexed:
        how = {"palette": tuple((code >> 16, code >> 8 & 255, code & 255) for code in codes)}
    found = masks(counts, **how)
    assert warn_soft_edges(found, choose_labels(found, DataConfig())) == []


BLACK, WHITE, RED, GREEN = 0, 0xFFFFFF, 0xFF0000, 0x00FF00


@pytest.mark.parametrize(
    ("counts", "how", "said"),
    [
        (soft(1000, 1, 8), {}, "8 of the 10 classes have few pixels and lie between 0 and 18: if they are soft edges, use --mask-threshold 9; if they are numbers"),
        (soft(1000, 13, 8), {}, "--mask-threshold 9"),  # 4.9 %
        ({0: 900, 64: 9, 128: 9, 191: 9, 255: 900}, {}, "3 of the 5 classes have few pixels and lie between 0 and 255: if they are soft edges, use --mask-threshold 127"),
        ({BLACK: 900, 0x404040: 9, 0x808080: 9, 0xBFBFBF: 9, WHITE: 900}, {"rgb": True}, "3 of the 5 classes have few pixels and lie between #000000 and #ffffff: if they are soft edges, use --mask-threshold 127"),
        ({BLACK: 900, 0x400000: 9, 0x800000: 9, 0xBF0000: 9, RED: 300}, {"rgb": True}, "--mask-threshold 127"),
        ({RED: 900, 0xBF4000: 9, 0x807F00: 9, 0x40BF00: 9, GREEN: 900}, {"rgb": True}, "use --classes 2 --round-masks"),
        ({BLACK: 900, RED: 300, GREEN: 300, 0x800000: 9, 0x400000: 9, 0x4000: 9, 0x8000: 9, 0x404000: 1}, {"rgb": True}, "5 of the 8 classes have few pixels and lie between others: if they are soft edges, use --classes 3 --round-masks"),
        ({0: 900, 1: 9, 2: 9, 3: 9, 4: 900}, {"palette": ((0, 0, 0), (64, 64, 64), (128, 128, 128), (191, 191, 191), (255, 255, 255))}, "3 of the 5 classes have few pixels and lie between 0 and 4: if they are soft edges, use --classes 2 --round-masks"),
    ],
)  # fmt: skip
def test_classes_that_may_be_soft_edges_are_a_warning(
    counts: dict[int, int], how: dict[str, Any], said: str
) -> None:
    values = masks(counts, **how)
    (line,) = warn_soft_edges(values, choose_labels(values, DataConfig()))
    assert said in line


def test_colours_of_objects_are_no_soft_edges() -> None:
    """Their labels' values are the classes of objects, background and border."""
    values = masks({BLACK: 900, RED: 90, GREEN: 40, 0x80: 9}, rgb=True)
    assert warn_soft_edges(values, choose_labels(values, DataConfig(instances=True))) == []


@pytest.mark.parametrize(
    ("counts", "how", "flags"),
    [
        (soft(1000, 1, 7), {}, {}),  # too few classes, close to each other
        (soft(1000, 14, 8), {}, {}),  # 5.3 % between
        ({0: 900, 1: 9, 2: 9, 3: 9, 4: 900}, {}, {}),  # class ids
        ({0: 900, 64: 40, 128: 40, 191: 40, 255: 900}, {}, {}),
        ({0: 900, 128: 9, 191: 9, 255: 900}, {}, {}),
        ({BLACK: 900, 0x8000: 9, 0x80: 9, 0x800000: 9, WHITE: 900}, {"rgb": True}, {}),
        (soft(1000, 1, 8), {"palette": ((0, 0, 0),)}, {}),
        (soft(1000, 1, 8), {}, {"mask_threshold": 0}),
    ],
)
def test_what_is_not_taken_for_soft_edges(
    counts: dict[int, int], how: dict[str, Any], flags: dict[str, Any]
) -> None:
    values = masks(counts, **how)
    assert warn_soft_edges(values, choose_labels(values, DataConfig(**flags))) == []
