"""One name in all spellings that systems and programs give it, wherever a file is looked for by its name."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.data.matching import Report, find_pairs, read_list
from unet_ddp.data.names import copies_of, file_key
from unet_ddp.extras.overlap.folders import read_codes
from unet_ddp.prediction.paths import find_images

NAME = "café Ål.1"
FORMS = ("NFC", "NFD")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252")


def spelled(form: str, text: str = NAME) -> str:
    return unicodedata.normalize(form, text)  # type: ignore[arg-type]


def save(path: Path, value: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 8), value, np.uint8)).save(path)


def make_set(folder: Path, image: str, mask: str) -> None:
    save(folder / f"imgs/{image}.png", 90)
    save(folder / f"masks/{mask}.png")


@pytest.mark.parametrize(("image", "mask"), [*itertools.product(FORMS, FORMS)])
def test_the_forms_of_unicode_are_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, mask: str
) -> None:
    """In folders, folders of classes, lists, imports and predictions; paths stay as they are."""
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, spelled(image), spelled(mask))
    (pair,) = find_pairs(Path("imgs"), Path("masks"))
    assert pair.name == file_key(spelled(image)) == spelled("NFC")
    assert pair.image == Path(f"imgs/{spelled(image)}.png") and pair.mask.is_file()
    rows = f"image,mask\nimgs/{spelled(mask)}.png,masks/{spelled(image)}.png\n"
    Path("pairs.csv").write_text(rows)
    (listed,) = read_list(Path("pairs.csv"))
    assert (listed.image, listed.mask) == (pair.image, pair.mask)
    assert listed.name == f"imgs/{spelled('NFC')}"
    Path("list.txt").write_text(f"imgs/{spelled(mask)}.png\n")
    assert find_images(["list.txt"]) == [pair.image]
    for name in "ab":
        save(Path(f"planes/{name}/{spelled(mask)}.png"), 255)
    (planes,) = find_pairs(Path("imgs"), Path("planes"), planes=True)
    assert read_codes(planes.mask).tolist() == [[3] * 8] * 6
    Path("rle.csv").write_text(f"img,rle_mask\n{spelled(mask)}.png,1 5\n")
    assert main(["import", "rle.csv", "--images", "imgs", "-o", "out"]) == 0
    assert [pair.image.resolve() for pair in read_list(Path("out/pairs.csv"))] == [
        pair.image.resolve()
    ]


def _list(separator: str, encoding: str, slash: str, ends: str, first: str) -> bytes:
    paths = [slash.join((side, f"{NAME}.png")) for side in ("imgs", "masks")]
    rows = [separator.join(cells) for cells in (["Image", " mask"], paths)]
    return (first + ends.join([*rows, ""])).encode(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_lists_of_other_systems_and_excel(tmp_path: Path, encoding: str) -> None:
    r"""Every separator, encoding, line end and slash; `sep=;` is a line for Excel."""
    make_set(tmp_path, NAME, NAME)
    path = tmp_path / "pairs.csv"
    for separator, slash, ends in itertools.product(",;\t", "/\\", ("\n", "\r\n")):
        for first in ("", f"sep={separator}{ends}"):
            path.write_bytes(_list(separator, encoding, slash, ends, first))
            (pair,) = read_list(path)
            assert pair.image == tmp_path / f"imgs/{NAME}.png" and pair.mask.is_file()
            assert pair.name == f"imgs/{NAME}"
    path.write_bytes(f"imgs\\{NAME}.png\r\n".encode(encoding))
    assert find_images([str(path.rename(tmp_path / "list.txt"))]) == [pair.image]


def test_a_backslash_may_be_part_of_a_name(tmp_path: Path) -> None:
    save(tmp_path / "a\\b.png")
    save(tmp_path / "a/b.png")
    (tmp_path / "pairs.csv").write_text("image,mask\na\\b.png,a/b.png\n")
    assert [pair.image.name for pair in read_list(tmp_path / "pairs.csv")] == ["a\\b.png"]


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        (["x.ome.tif", "y.ome.tif"], ["x.png", "y.png"]),
        (["x.png", "y.png"], ["x.ome.tif", "y.ome.tif"]),
        (["x.ome.tiff", "y.png"], ["x_mask.png", "y_mask.png"]),
        (["x.ome.tif", "y.ome.tif"], ["x.ome.tif", "y.ome.tif"]),
        (["x.png", "@eaDir/x.png", "__MACOSX/x.png"], ["x.png", "@eaDir/y.png"]),
    ],
)
def test_suffixes_of_two_parts_and_folders_of_systems(
    tmp_path: Path, images: list[str], masks: list[str]
) -> None:
    for side, names in (("i", images), ("m", masks)):
        for name in names:
            (tmp_path / side / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / side / name).touch()
    shown = [name for name in images if "/" not in name]
    pairs = find_pairs(tmp_path / "i", tmp_path / "m")
    assert [pair.image.name for pair in pairs] == shown
    assert [pair.mask.name[0] for pair in pairs] == [name[0] for name in shown]


@pytest.mark.parametrize(
    "copied",
    ["x copy", "x copy 2", "x (1)", "x(2)", "x - Copy", "x - Copy (2)"],
)
def test_copies_are_said(tmp_path: Path, copied: str) -> None:
    for name in ("sub/x", f"sub/{copied}", "sub/x 2", "copy"):
        make_set(tmp_path, name, name)
    assert copies_of([f"sub/{copied}", "sub/x", "x 2", "copy"]) == {f"sub/{copied}": "sub/x"}
    report = Report()
    find_pairs(tmp_path / "imgs", tmp_path / "masks", report)
    (warning,) = report.warnings
    assert "1 image named like a copy" in warning and f"{copied}.png is one of" in warning


@pytest.mark.parametrize("make", [lambda name: f"imgs/{name}", lambda name: f"deep/imgs/{name}"])
def test_outputs_among_the_inputs_are_no_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], str]
) -> None:
    """Of a pattern whose --output is one of the folders that it searches."""
    monkeypatch.chdir(tmp_path)
    for name in (make("a.png"), "imgs/out/a_mask.png", "imgs/out/a_overlay.png", "imgs/b_mask.png"):
        save(tmp_path / name)
    assert [path.name for path in find_images(["**/*.png"])] == sorted(["a.png", "b_mask.png"])


def test_a_list_that_is_none_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("picture;labels\na;b\n")
    with pytest.raises(ValueError, match=r"first line is 'picture,labels', 1 row follow") as error:
        read_list(path)
    assert "image,mask" in str(error.value)


def test_pairs_of_other_names_are_told_of_lists(tmp_path: Path) -> None:
    make_set(tmp_path, "21_training", "21_manual1")
    with pytest.raises(ValueError, match="--list"):
        find_pairs(tmp_path / "imgs", tmp_path / "masks")


@pytest.mark.parametrize(("image", "labels"), [FORMS, FORMS[::-1]])
def test_labels_of_yolo_are_found_in_either_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, labels: str
) -> None:
    """An image whose labels were overlooked would have an empty mask."""
    monkeypatch.chdir(tmp_path)
    make_set(tmp_path, spelled(image), "other")
    Path("data.yaml").write_text("names: [car]\n")
    Path("labels").mkdir()
    Path(f"labels/{spelled(labels)}.txt").write_text("0 0 0 1 0 1 1\n")
    assert main(["import", "data.yaml", "--images", "imgs", "-o", "out"]) == 0
    (pair,) = read_list(Path("out/pairs.csv"))
    assert np.asarray(Image.open(pair.mask)).any()


def test_what_else_keeps_a_mask_from_its_image_is_said(tmp_path: Path) -> None:
    make_set(tmp_path, "Ax", "ax")
    with pytest.raises(ValueError, match="other upper and lower case"):
        find_pairs(tmp_path / "imgs", tmp_path / "masks")
    (tmp_path / "pairs.csv").write_text("image,mask\nC:\\x\\a.png,masks\\ax.png\n")
    with pytest.raises(ValueError, match="neither with / in place"):
        read_list(tmp_path / "pairs.csv")
