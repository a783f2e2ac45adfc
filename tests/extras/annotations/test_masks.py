"""The images that annotations are of, the names of their classes, and masks of classes and of objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unet_ddp.__main__ import main
from unet_ddp.extras.annotations.masks import NameFinder, clean_label

IMAGES = NameFinder(["scan_1", "sub/other", "very/deep/third", "u\u0308ber", "é", "a b", "5%20"])


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
        ("", None),
    ],
)
def test_a_file_means_the_image_of_its_name(text: str, name: str | None) -> None:
    assert IMAGES.find(text) == name


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
        ["1/1.png", "1/2.png", "2/1.png"],  # the names are those of images, too
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


def test_folders_of_classes_that_are_named_like_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{number}.png" for number in range(1, 6)]
    images = save(tmp_path / "i", *names)
    for folder in ("1", "2"):
        save(tmp_path / "m" / folder, *names, rows=1)
    assert "5 masks of 10 objects; classes background, 1, 2\n" in run(
        tmp_path / "m", images, capsys
    )


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
