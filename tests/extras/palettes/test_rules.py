"""Classes that a file names and orders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.data.test_label_rules import masks
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import choose_labels
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.palettes.rules import check_order, read_palette


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
        (("7,1", "car,0"), {"7": 1, "car": 0}, False),
        (("Pixel Value, Class", "0, background", "1, 10"), {"background": 0, "10": 1}, False),
        (("0, background", "1, car"), {"background": 0, "car": 1}, False),
        (
            ("# label:color_rgb:parts:actions", "background:0,0,0::", "old car:250,50,83::"),
            {"background": 0, "old car": 0xFA3253},
            True,
        ),
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
        (("sky,0", "car," + "9" * 5000), "line 2: a cell has more than 4096 characters"),
        (("sky,0", "car,70000"), "70000"),
        (("sky,0", "x" * 10**5), "line 2: a cell has more than 4096"),
        (("sky,0", "x" * 200_000 + ",1"), "line 2: a cell has more than 4096"),
    ],
)
def test_a_bad_palette_file_is_named(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    path = palette(tmp_path, *lines)
    with pytest.raises(UserError) as caught:
        read_palette(Path(path))
    assert str(caught.value).startswith(f"--palette {path}: ") and said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_palette_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.csv: No such file or directory; give a CSV file"):
        read_palette(tmp_path / "gone.csv")
    (tmp_path / "p.csv").write_bytes(b"a,\xff\xfe")
    with pytest.raises(
        UserError, match=r"p\.csv: line 1 is not UTF-8 text, near 'a,ÿþ'; save the file as UTF-8"
    ):
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
        (("a,0", "b,1"), {}, {"ignore_index": 0}, "fewer than two classes that are not ignored"),
        (("a,0", "b,1"), {}, {}, "also contain 7, 8 in 20 pixels, e.g. in m7.png; add a line"),
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


@pytest.mark.parametrize(
    ("lines", "is_right"),
    [
        (("background,#000000", "car,#800000", "tree,#008000"), True),
        (("background,#000000", "car,#800000"), True),  # fewer classes, in the same places
        (("background,#000000", "zebra,#800000"), True),  # other names say nothing
        (("background,#000000", "tree,#800000", "zebra,#008000"), False),
        (("of something else",), True),
    ],
)
def test_masks_of_another_import_are_those_of_the_network(
    tmp_path: Path, lines: tuple[str, ...], is_right: bool
) -> None:
    (tmp_path / "palette.csv").write_text("\n".join(lines))
    known = {"background": 0, "car": 1, "tree": 2}
    check_order(None, known)
    check_order("s3://bucket/masks", known)
    check_order(str(tmp_path / "elsewhere"), known)
    if is_right:
        check_order(str(tmp_path), known)
        return
    with pytest.raises(UserError, match="tree is 1 in these masks, and 2 where the network is"):
        check_order(str(tmp_path), known)
