"""The images that annotations are of, the names of their classes, and masks of classes and of objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.extras.annotations.masks import NameFinder, clean_label

DOTTED = "img_0", "img_0.5", "img_1.5", "v2.left", "v2", "w.png", "w"
PLAIN = "scan_1", "sub/other", "very/deep/third", "u\u0308ber", "é", "a b", "5%20"
IMAGES = NameFinder([*PLAIN, *DOTTED])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("scan_1", "scan_1"),
        ("scan_1.png", "scan_1"),
        ("x/y/sub/other.jpg", "sub/other"),
        (r"C:\imgs\.\sub\other.jpg", "sub/other"),
        ("x/../sub/./other.jpg", "sub/other"),
        ("other.jpg", "sub/other"),  # all folders left out
        ("./other.jpg", "sub/other"),
        ("third.jpg", "very/deep/third"),
        ("/data/local-files/?d=other.jpg", "sub/other"),  # Label Studio's local files
        ("/data/local-files/?d=sub%2Fo%74her.jpg", "sub/other"),
        ("x/a%20b.jpg", "a b"),
        ("5%20.jpg", "5%20"),
        ("y/other.jpg", None),  # another folder's
        ("\u00fcber.jpg", "u\u0308ber"),  # composed, as most systems write it, of a Mac's file
        ("e\u0301.jpg", "é"),
        ("deadbeef-scan_1.png", "scan_1"),  # uploaded to Label Studio
        ("scan_deadbeef-1.png", None),
        ("img_0.5", "img_0.5"),  # no suffix: what follows the dot is the name's
        ("x/img_0.5", "img_0.5"),
        ("img_0.5.png", "img_0.5"),
        ("img_0.5.heic", "img_0.5"),
        ("img_0.7", None),  # not img_0
        ("img_1.5.TIF", "img_1.5"),
        ("deadbeef-img_1.5", "img_1.5"),
        ("img_0.heic", "img_0"),  # converted to another format since
        ("v2.left", "v2.left"),
        ("w.png", "w"),
        ("w.png.png", "w.png"),
        ("", None),
    ],
)
def test_a_file_means_the_image_of_its_name(text: str, name: str | None) -> None:
    assert IMAGES.find(text) == name


def test_a_name_with_a_dot_is_whole_in_each_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """img_0.5 without suffix is no img_0, whose masks both would be."""
    monkeypatch.chdir(tmp_path)
    names = ["img_0", "img_0.5"]
    save(Path("imgs"), *(f"{name}.png" for name in names))
    corners = [[0, 0], [8, 0], [8, 6]]
    images = [{"id": k, "file_name": name} for k, name in enumerate(names)]
    outlines = [{"image_id": k, "category_id": 1, "segmentation": [corners]} for k in (0, 1)]
    categories = [{"id": 1, "name": "car"}]
    coco = {"images": images, "annotations": outlines, "categories": categories}
    Path("coco.json").write_text(json.dumps(coco))
    Path("runs.csv").write_text("id,rle\nimg_0,1 5\nimg_0.5,1 5\n")
    Path("labelme").mkdir()
    for name in names:
        content = {"imagePath": name, "shapes": [{"label": "car", "points": corners}]}
        Path("labelme", f"{name}.json").write_text(json.dumps(content))
    for file in ("coco.json", "runs.csv", "labelme"):
        assert main(["import", file, "--images", "imgs", "-o", f"{file}-out"]) == 0
        assert {mask.stem for mask in Path(f"{file}-out").glob("*.png")} == {*names}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" a\n b ", "a b"),
        ("", "unnamed"),
        (7, "7"),
        ("BackGround", "background"),
        ("_background_", "background"),  # Labelme's
        ("__ignore__", "ignore"),
    ],
)
def test_a_class_has_a_name_in_one_line(text: object, name: str) -> None:
    assert clean_label(text) == name


def save(folder: Path, *names: str, rows: int = 2) -> Path:
    """Write masks of 8x6 pixels, each of an object in two rows, the next one of the next two; return the folder."""
    for number, name in enumerate(names):
        pixels = np.zeros((6, 8), np.uint8)
        pixels[rows * number : rows * number + rows] = 255
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
    return folder


def run(masks: Path, images: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Import masks to a folder beside the images, and return what is said."""
    output = str(images.with_name("out"))
    main(["import", str(masks), "--images", str(images), "-o", output, *flags])
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.parametrize(
    "names",
    [
        ["1/1.png", "1/3.png", "2/1.png"],  # some names are those of images, too
        ["1/f9.png", "1/03.png", "2/one.png"],
        ["1_a.png", "1_b.png", "2_a.png"],
        ["1/masks/a.png", "1/masks/b.png", "2/masks/c.png", "1/images/1.png", "2/images/2.png"],
    ],
)
def test_a_file_for_each_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    images = save(tmp_path / "i", "1.png", "2.png")
    said = run(save(tmp_path / "m", *names), images, capsys, "--instances")
    assert "out: 2 masks of 3 objects; classes background, object\n" in said
    assert "1 image with several masks: 2 files joined\n" in said
    numbers = np.asarray(Image.open(tmp_path / "out" / "1.png"))
    assert numbers[:, 0].tolist() in ([1, 1, 2, 2, 0, 0], [2, 2, 1, 1, 0, 0])
    assert np.unique(np.asarray(Image.open(tmp_path / "out" / "2.png"))).tolist() == [0, 1]


def test_images_beside_their_folder_of_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The masks are no images, and may be of an image that is not there."""
    folder = save(
        tmp_path / "i", "x/masks/a.png", "x/masks/b.png", "y/masks/c.png", "x/images/x.png"
    )
    assert "image 'y.png' is not in" in run(folder, folder, capsys)
    said = run(folder, folder, capsys, "--skip-missing")
    assert said.splitlines()[0].endswith("1 mask of 2 objects; classes background, object")
    assert said.splitlines()[1] == "1 annotated images are not in --images: left out"
    assert [path.name for path in tmp_path.glob("out/**/*.png")] == ["x.png"]


@pytest.mark.parametrize(
    ("names", "folders", "end"),
    [
        ("12345678", ["1", "2"], ""),
        ("12345", ["1", "2"], "_mask"),
        ("123", ["1"], "_mask"),
        ("123", ["1_nuc", "2_cyto"], ""),
        ("123", ["1_nuc", "2_cyto"], "-m"),
        ("123", ["1_a", "2_b", "3_c"], ""),
        (["cat", "dog", "bird"], ["cat", "tree"], ""),
    ],
)
def test_folders_of_classes_that_are_named_like_images(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    names: Sequence[str],
    folders: list[str],
    end: str,
) -> None:
    images = save(tmp_path / "i", *(f"{name}.png" for name in names))
    for folder in folders:
        save(tmp_path / "m" / folder, *(f"{name}{end}.png" for name in names), rows=1)
    said = run(tmp_path / "m", images, capsys)
    assert f"{len(names)} masks of " in said
    assert f"; classes background, {', '.join(folders)}\n" in said


def test_a_stray_file_makes_no_objects_of_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = save(tmp_path / "i", "1.png", "2.png", "3.png")
    for folder in ("1_nuc", "2_cyto"):
        save(tmp_path / "m" / folder, "1.png", "2.png", "3.png", "gone.png", rows=1)
    assert "image 'gone.png' is not in" in run(tmp_path / "m", images, capsys)
    said = run(tmp_path / "m", images, capsys, "--skip-missing")
    assert "classes background, 1_nuc, 2_cyto\n" in said


@pytest.mark.parametrize(
    ("names", "folders", "files"),
    [
        ("012", ["1", "2"], "012"),
        ("123", ["1", "2"], "123"),
        ("12345678", ["1", "2"], "123"),
        ("123", ["1_x", "2_x", "3_x"], "12"),
        (["cat", "dog", "bird"], ["cat", "dog"], ["cat", "dog"]),
    ],
)
def test_folders_that_may_be_classes_or_images_are_an_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    names: Sequence[str],
    folders: list[str],
    files: Sequence[str],
) -> None:
    images = save(tmp_path / "i", *(f"{name}.png" for name in names))
    for folder in folders:
        save(tmp_path / "m" / folder, *(f"{name}.png" for name in files), rows=1)
    said = run(tmp_path / "m", images, capsys)
    assert f"m: its folders {', '.join(folders)} and the files in them have names of images" in said
    assert "rename folders of classes, as class_1, or move files of objects" in said
    for folder in folders:
        (tmp_path / "m" / folder).rename(tmp_path / "m" / f"class_{folder}")
    said = run(tmp_path / "m", images, capsys)
    assert f"classes background, {', '.join(f'class_{folder}' for folder in folders)}\n" in said


def test_masks_of_several_kinds_are_no_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be joined in one class."""
    images = save(tmp_path / "i", "a.png", "b.png")
    masks = save(tmp_path / "m", "a_nuc.png", "a_cyt.png", rows=1)
    save(masks, "b_nuc.png", "b_cyt.png", rows=1)
    said = run(masks, images, capsys)
    assert "2 images have masks whose names add '_cyt' and '_nuc'" in said
    assert "with --mask-suffix _nuc, or move each kind to a folder with its name" in said
    for kind in ("cyt", "nuc"):
        for name in "ab":
            save(tmp_path / "n", f"{kind}/{name}_{kind}.png")
    assert "2 masks of 4 objects; classes background, cyt, nuc\n" in run(
        tmp_path / "n", images, capsys
    )


@pytest.mark.parametrize("name", ["{}_{}.png", "{}/{}.png"])
def test_masks_with_numbers_are_of_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    images = save(tmp_path / "i", "a.png", "b.png")
    masks = tmp_path / "m"
    for image in "ab":
        save(masks, name.format(image, 1), name.format(image, 2))
    said = run(masks, images, capsys)
    assert "2 masks of 4 objects; classes background, object\n" in said
    assert "2 images with several masks: 4 files joined\n" in said


def test_the_mask_of_an_image_that_is_gone_is_no_second_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = save(tmp_path / "i", "t1.png", "t2.png")
    for folder in "AB":
        for name in ("t1m.png", "t2m.png", "t1_1m.png"):
            save(tmp_path / "m" / folder, name)
    assert "image 't1_1.png' is not in" in run(tmp_path / "m", images, capsys)
    said = run(tmp_path / "m", images, capsys, "--skip-missing")
    assert "2 masks of 4 objects; classes background, A, B\n" in said


def test_several_masks_of_an_image_in_the_folder_of_a_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second object would be taken for the mask of another image, and left out by --skip-missing."""
    images = save(tmp_path / "i", "a.png", "b.png")
    save(tmp_path / "m", "car/a_1.png", "car/a_2.png", "tree/b.png")
    said = run(tmp_path / "m", images, capsys, "--skip-missing")
    assert "a_1.png and" in said and said.endswith(
        f"by itself: python -m unet_ddp import {tmp_path}/m/car\n"
    )
    assert "1 mask of 2 objects" in run(tmp_path / "m" / "car", images, capsys)


LAYERS = {  # colour, transparency of some pixels and of all others, number of the object's pixels
    "white": (255, [255], 0, 1),
    "black": (0, [255, 255], 0, 2),
    "soft edges, half opaque": (255, [20, 102, 120], 0, 2),
    "nothing visible": (255, [], 0, 0),
    "all visible": (255, [], 102, 48),
    "nothing drawn": (0, [], 255, 0),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_a_layer_of_one_colour_has_its_shape_in_the_transparency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, mode: str
) -> None:
    """Its colour alone would cover the whole image."""
    value, some, others, count = LAYERS[name]
    alpha = np.full((6, 8), others, np.uint8)
    alpha[2, : len(some)] = some
    images = save(tmp_path / "i", "a.png")
    layer = save(tmp_path / "m", "car/a.png") / "car/a.png"
    bands = [np.full((6, 8), value, np.uint8)] * (len(mode) - 1)
    Image.fromarray(np.dstack([*bands, alpha])).save(layer)
    said = run(tmp_path / "m", images, capsys)
    assert "classes background, car\n" in said
    note = "1 masks have one colour: their objects are what is opaque\n"
    assert (note in said) == (len({*some, others}) > 1 or others == 0)
    assert np.count_nonzero(np.asarray(Image.open(tmp_path / "out" / "a.png"))) == count


@pytest.mark.parametrize("name", ["a.png", "c.png"])
def test_a_black_mask_among_masks_with_values_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Its transparent border would make an object of it; another class may still consist of black layers."""
    images = save(tmp_path / "i", "a.png", "b.png", "c.png")
    save(tmp_path / "m", "car/b.png")
    opaque = np.pad(np.full((4, 6), 255, np.uint8), 1)
    layer = Image.fromarray(np.dstack([np.zeros((6, 8, 3), np.uint8), opaque]))
    layer.save(tmp_path / "m" / "car" / name)
    (tmp_path / "m" / "tree").mkdir()
    layer.save(tmp_path / "m" / "tree" / "b.png")
    said = run(tmp_path / "m", images, capsys)
    assert "2 masks of 2 objects; classes background, car, tree\n" in said
    assert "1 masks have one colour" in said
    assert not np.asarray(Image.open(tmp_path / "out" / name)).any()
    assert np.count_nonzero(np.asarray(Image.open(tmp_path / "out" / "b.png")) == 2) == 24


def test_a_photograph_is_no_mask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: np.random.Generator
) -> None:
    """Each of its values would be an object."""
    images = save(tmp_path / "i", "a.png")
    save(tmp_path / "m", "car/a.png")
    Image.fromarray(rng.integers(99, size=(6, 8, 3), dtype=np.uint8)).save(tmp_path / "m/car/a.png")
    assert "m/car/a.png: is a picture, no mask: most pixels differ" in run(
        tmp_path / "m", images, capsys
    )
    save(tmp_path / "n", "a_1.png", "a_2.png")
    Image.fromarray(np.eye(6, 8, dtype=np.uint8) * np.arange(8, dtype=np.uint8)).save(
        tmp_path / "n/a_2.png"
    )
    assert "n/a_2.png: 5 values above 0; there are several" in run(tmp_path / "n", images, capsys)
