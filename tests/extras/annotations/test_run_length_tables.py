"""Tables of run lengths: what predict.py writes, and what challenges have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.data.csv_cells import format_row
from unet_ddp.data.readers.read import read_mask
from unet_ddp.extras.outputs.rle import RunLengths, encode_rle


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with images of 8x6 pixels: a.png and sub/b.png."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "sub/b"):
        path = Path("imgs", f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(path)
    return tmp_path


def run(text: str, *flags: str, name: str = "train.csv") -> int:
    Path(name).write_text(text)
    return main(["import", name, "--images", "imgs", "-o", "out", *flags])


@pytest.mark.parametrize("order", ["rows", "columns"])
def test_the_masks_of_a_prediction_come_back(
    here: Path, rng: np.random.Generator, order: str
) -> None:
    """Of any shape, and of no object; the order by rows is known from the header."""
    masks = {"a": rng.integers(0, 2, (6, 8)), "sub/b": np.zeros((6, 8), int)}
    rows = [(f"{Path(name).name}.png", encode_rle(mask, order)) for name, mask in masks.items()]
    text = "\n".join([RunLengths.header, *map(format_row, rows)])
    flags = ["--rle-order", order] if order == "columns" else []
    assert run(text, *flags) == 0
    for name, mask in masks.items():
        np.testing.assert_array_equal(read_mask(Path(f"out/{name}.png")), mask)


@pytest.mark.parametrize(
    "heading", ["ImageId,EncodedPixels", "id,rle_mask", " Image Id ;encoding", "id\trle"]
)
@pytest.mark.parametrize("suffix", ["", ".png", ".jpg"])
def test_tables_of_challenges_count_along_the_columns(
    here: Path, heading: str, suffix: str
) -> None:  # fmt: skip
    """A row for each object; an image without any has an empty cell, or -1."""
    mark = next(each for each in ";\t," if each in heading)
    rows = [("a", "1 6 8 2"), ("a", "13 1"), ("b", "-1")]
    lines = [mark.join((f"{name}{suffix}", runs)) for name, runs in rows]
    assert run("\n".join([heading, *lines]), "--instances") == 0
    mask = read_mask(Path("out/a.png"))
    assert mask.T.ravel()[:14].tolist() == [1] * 6 + [0, 1, 1, 0, 0, 0, 2, 0]
    assert not read_mask(Path("out/sub/b.png")).any()


@pytest.mark.parametrize(
    "rows",
    [
        "ImageId,ClassId,EncodedPixels\na.png,10,1 6\na.png,2,7 6\n",
        "ImageId_ClassId,EncodedPixels\na.png_10,1 6\na.png_2,7 6\nb.png_2,\n",
    ],
)
def test_classes_are_in_the_order_of_their_numbers(
    here: Path, rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(rows) == 0
    said = capsys.readouterr().out
    assert "classes background, 2, 10\n" in said and "along the columns" in said
    assert read_mask(Path("out/a.png"))[0].tolist() == [2, 1] + [0] * 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image,mask\na.png,b.png\n", "its columns are 'image,mask'; a table of run lengths has"),
        ("img,rle_mask\na.png,1 2 3\n", "image 'a.png': line 2: 3 numbers; expected start and length"),
        ("img,rle_mask\na.png,x 2\n", "line 2: 'x' among the run lengths; expected whole numbers"),
        ("img,rle_mask\na.png,40 10\n", "run lengths from pixel 40 to 49; the image has 8x6 pixels, 1 to 48"),
        ("img,rle_mask\na.png,0 2\n", "run lengths from pixel 0 to 1"),
        ("img,rle_mask\n,1 2\n", "line 2 names no image"),
        ("img,rle_mask\nc.png,1 2\n", "image 'c.png' is not in imgs"),
        ("", "its columns are ''"),
        ("id,rle\na.png,30 4 2 4 3 8\n", "image 'a.png': line 2, each start counted from the run before as runs of line 2 overlap: run lengths from pixel 31 to 51; the image has 8x6 pixels, 1 to 48; use images of the table's size, or remove runs that are there twice"),
        ("id,rle,Height,Width\na.png,1 2,8,6\n", "image 'a.png': annotated as 6x8, the image is 8x6"),
        ("id,rle,height,width\na.png,1 2,x,6\n", "train.csv: line 2: height is 'x'; expected a whole number"),
        ("id,class,rle\na.png,,1 2\n", "line 2 names no image, or no class"),
        ("id,class,rle\na.png,,\n", "train.csv: no object is annotated"),
    ],
)  # fmt: skip
def test_a_bad_table_is_one_line(
    here: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(text) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not Path("out").exists()


def encode_relative(mask: np.ndarray) -> str:
    """Return the run lengths of a mask as in SIIM-ACR: each start from the end of the run before, along the columns."""
    numbers = encode_rle(mask, "columns").split()
    words, end = [], 1
    for start, length in zip(map(int, numbers[::2]), map(int, numbers[1::2]), strict=True):
        words += [start - end, length]
        end = start + length
    return " ".join(map(str, words)) or "-1"


def test_starts_that_count_from_the_run_before(
    here: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read as places in the image, they would overlap; single runs in the table are of the same kind."""
    dot = np.zeros((6, 8), int)
    dot[3, 2] = 1
    masks = {"a": np.pad(np.ones((3, 4), int), ((2, 1), (1, 3))), "sub/b": dot}
    rows = [(Path(name).name, f" {encode_relative(mask)}") for name, mask in masks.items()]
    assert rows[0][1] == " 8 3 3 3 3 3 3 3"
    assert run("\n".join(["ImageId, EncodedPixels", *map(",".join, rows)])) == 0
    said = (
        "starts count from the end of the run before, as in SIIM-ACR: runs of line 2 would overlap"
    )
    assert said in capsys.readouterr().out
    for name, mask in masks.items():
        np.testing.assert_array_equal(read_mask(Path(f"out/{name}.png")), mask)


def test_objects_that_were_joined_in_a_row_are_no_such_starts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("id,rle\na,20 3 26 3 1 6 9 2\n") == 0
    inside = np.flatnonzero(read_mask(Path("out/a.png")).T.ravel()) + 1
    assert inside.tolist() == [*range(1, 7), 9, 10, *range(20, 23), *range(26, 29)]
    assert "SIIM" not in capsys.readouterr().out


RISING = "1 2 7 2 13 2 19 2 25 2"
OVERLAPS = {  # rows, lines that are named: all other runs rise, as places in the image do
    "a run of one row is there twice": ([RISING] * 9 + [f"{RISING} 25 2"], "11"),
    "a run of each row is": ([f"{RISING} 25 2"] * 5, "2, 3, 4 and 2 more"),
    "the runs of an object come twice": ([f"{RISING} {RISING}", "31 4"], "2"),
    "half of the rows": (["1 9 5 2 4 3", RISING], "2"),
    "the only row of several runs": (["31 2", "13 4 13 4"], "3"),
    "a run in another": ([RISING, RISING, "1 6 2 3 40 2"], "4"),
    "as starts from the run before beyond the table's size": (["1 40 39 8 3 9", "31 4"], "2"),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_runs_that_overlap_in_few_places_are_drawn_where_they_are(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Read as starts from the run before, all masks of the table would be others."""
    rows, lines = OVERLAPS[name]
    assert run("\n".join(["id,rle,height,width", *(f"a,{runs},6,8" for runs in rows)])) == 0
    numbers = [int(word) for word in " ".join(rows).split()]
    runs = zip(numbers[::2], numbers[1::2], strict=True)
    inside = {pixel for start, length in runs for pixel in range(start, start + length)}
    assert {*np.flatnonzero(read_mask(Path("out/a.png")).T.ravel()) + 1} == inside
    said = capsys.readouterr().out
    assert f"runs that overlap in one row are drawn as one object: line {lines}\n" in said
    assert "SIIM" not in said


@pytest.mark.parametrize("heading", ["Height,Width", "img_height,img_width"])
def test_a_table_may_say_the_size_of_its_images(here: Path, heading: str) -> None:
    assert run(f"id,rle,{heading}\na,1 6,6,8\nb,1 6,6.0,8.0\nb,7 6,,\n") == 0
    assert read_mask(Path("out/a.png"))[0].tolist() == [1] + [0] * 7


def test_an_image_without_object_needs_no_class(here: Path) -> None:
    """Severstal's b.png,, in a table of classes."""
    assert run("ImageId,ClassId,EncodedPixels\na.png,3,1 6\nb.png,,\n") == 0
    assert read_mask(Path("out/a.png")).any() and not read_mask(Path("out/sub/b.png")).any()


@pytest.mark.parametrize("word", ["nan", "None", "", "-1"])
def test_a_word_for_no_value_is_none_in_each_column(
    here: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    """What pandas writes of an image without object: the word is no size, and no class."""
    rows = f"a.png,3,1 6,{word},{word}\nb.png{f',{word}' * 4}\n"
    assert run(f"ImageId,ClassId,EncodedPixels,Height,Width\n{rows}") == 0
    assert "classes background, 3\n" in capsys.readouterr().out
    assert read_mask(Path("out/a.png")).any() and not read_mask(Path("out/sub/b.png")).any()


@pytest.mark.parametrize("row", ["3,1 2 3,6,8", "3,x,6,8", "3,1 6,x,8", ",1 6,6,8"])
def test_a_bad_row_of_an_image_that_is_left_out_is_left_out(
    here: Path, row: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"ImageId,ClassId,EncodedPixels,Height,Width\na.png,3,1 6,6,8\ngone.png,{row}\n"
    assert run(text, "--skip-missing") == 0
    assert "1 annotated images are not in --images: left out\n" in capsys.readouterr().out
    assert read_mask(Path("out/a.png")).any()
    assert run(text, "-o", "other") == 2
    assert "image 'gone.png' is not in imgs" in capsys.readouterr().err


def test_an_object_of_many_runs_is_read(here: Path) -> None:
    """Longer than the cells of other tables may be."""
    Image.new("RGB", (800, 200)).save("imgs/a.png")
    mask = np.indices((200, 800)).sum(axis=0) % 2
    assert run(f"img,rle_mask\na.png,{encode_rle(mask, 'rows')}\n") == 0
    np.testing.assert_array_equal(read_mask(Path("out/a.png")), mask)
