"""Pairs of images and masks, by their names or a list."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import make_set
from unet_ddp.cli import parse_train
from unet_ddp.data.drawing import save_picture
from unet_ddp.data.mask_sizes import mask_size_message
from unet_ddp.data.matching import Report, find_pairs, read_list
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.errors import UserError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def matched(images: Path, masks: Path, suffix: str | None = None) -> tuple[Pairs, Report]:
    report = Report(collects=True)
    return find_pairs(images, masks, report, suffix=suffix), report


@pytest.mark.parametrize(
    ("images", "masks", "partners"),
    [
        (["a.jpg", "b.jpg"], ["a.png", "b.png"], {"a": "a.png", "b": "b.png"}),
        (["a.jpg", "b.jpg"], ["a_mask.gif", "b_mask.gif"], {"a": "a_mask.gif", "b": "b_mask.gif"}),
        (["1.jpg", "10.jpg"], ["1_m.png", "10_m.png"], {"1": "1_m.png", "10": "10_m.png"}),
        (["x.1.JPG", "x.2.JPG"], ["x.1.png", "x.2.PNG"], {"x.1": "x.1.png", "x.2": "x.2.PNG"}),
        (["p/a.bmp", "q/a.bmp"], ["p/a.tif", "q/a.tif"], {"p/a": "p/a.tif", "q/a": "q/a.tif"}),
        (["ä ö.webp"], ["ä ö_mask.png"], {"ä ö": "ä ö_mask.png"}),
        (["a.jpg", ".DS_Store", "._a.jpg"], ["a.png", "Thumbs.db"], {"a": "a.png"}),
        (["a.jpg", ".thumbs/b.jpg"], ["a.png", ".thumbs/b.png"], {"a": "a.png"}),
        (["b.jpg", "a.jpg"], ["a.png", "b.png", "c_mask.png"], {"a": "a.png", "b": "b.png"}),
        # as many without as with a suffix: without
        (["a.jpg"], ["a.png", "a_mask.png"], {"a": "a.png"}),
    ],
)
def test_partners(
    tmp_path: Path, images: list[str], masks: list[str], partners: dict[str, str]
) -> None:
    touch(tmp_path / "i", *images)
    touch(tmp_path / "m", *masks)
    pairs = find_pairs(tmp_path / "i", tmp_path / "m")
    assert {p.name: p.mask.relative_to(tmp_path / "m").as_posix() for p in pairs} == partners
    assert [p.name for p in pairs] == sorted(partners)
    assert all(p.image.is_file() and p.image.with_suffix("").name in p.name for p in pairs)
    assert all((p.group, p.side) == (None, None) for p in pairs)


def test_masks_without_image_do_no_harm(tmp_path: Path) -> None:
    touch(tmp_path / "i", "a.jpg")
    touch(tmp_path / "m", "a_mask.png", "z_mask.png", "b_mask.png")
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert report.problems == [] and [pair.name for pair in pairs] == ["a"]
    assert report.notes == [f"2 masks without image, e.g. {tmp_path}/m/b_mask.png"]


def test_three_of_many_files_of_one_name_are_named(tmp_path: Path) -> None:
    touch(tmp_path / "i", "a.jpg", "a.png", "a.tif", "a.bmp")
    touch(tmp_path / "m", "a.png")
    (problem,) = matched(tmp_path / "i", tmp_path / "m")[1].problems
    assert all(f"/a.{suffix}" in problem for suffix in ("bmp", "jpg", "png"))
    assert "tif" not in problem


def test_the_suffix_may_be_given(tmp_path: Path) -> None:
    touch(tmp_path / "i", "a.jpg", "b.jpg")
    touch(tmp_path / "m", "a.png", "b.png", "a_car.png", "b_car.png")
    pairs, _ = matched(tmp_path / "i", tmp_path / "m", "_car")
    assert [pair.mask.name for pair in pairs] == ["a_car.png", "b_car.png"]
    pairs, report = matched(tmp_path / "i", tmp_path / "m", "_dog")
    assert not pairs and len(report.problems) == 2
    assert f"looked for {tmp_path}/m/a_dog.*" in report.problems[0]


def test_a_name_that_begins_a_folder_s_says_nothing(tmp_path: Path) -> None:
    """The mask of c is not car/a.png, in a folder for each class; an image's own folder may hold its mask."""
    touch(tmp_path / "i", "c.jpg")
    touch(tmp_path / "m", "car/a.png", "tree/a.png", "car/c.png", "tree/c.png")
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert not pairs and "if its folders are classes" in report.problems[0]
    assert find_pairs(tmp_path / "i", tmp_path / "m", planes=True)[0].mask.parts[-2:] == (
        "*",
        "c.png",
    )
    touch(tmp_path / "n", "c/mask.png", "d/mask.png")
    assert find_pairs(tmp_path / "i", tmp_path / "n")[0].mask == tmp_path / "n" / "c" / "mask.png"


@pytest.mark.parametrize(
    "masks",
    [
        ["a/1.png", "a/2.png", "b/1.png", "b/2.png"],
        ["a/f3.png", "a/07.png", "b/9c.png", "b/11.png"],  # names by chance
        ["a_1.png", "a_2.png", "a_3.png", "b_1.png"],
        ["a_mask.png", "b_mask.png", "b_mask_1.png"],
        ["a_color.png", "a_ids.png", "b_color.png", "b_ids.png"],  # kinds
        ["a-color.png", "a-ids 2.png", "b-color.png"],
        ["a b.png", "a-c d.png", "b b.png"],
    ],
)
def test_several_masks_of_one_image_are_an_error(tmp_path: Path, masks: list[str]) -> None:
    """The first alone would make background of the other objects."""
    touch(tmp_path / "i", "a.jpg", "b.jpg")
    touch(tmp_path / "m", *masks)
    with pytest.raises(
        UserError, match=r"i/.\.jpg: has \d masks, e\.g\. .* --mask-suffix[ =]"
    ) as error:
        find_pairs(tmp_path / "i", tmp_path / "m")
    words = shlex.split("--mask-suffix" + str(error.value).partition("--mask-suffix")[2])
    config = parse_train([*words, "--images", str(tmp_path / "i"), "--masks", str(tmp_path / "m")])
    suffix = config.data.mask_suffix
    assert find_pairs(tmp_path / "i", tmp_path / "m", Report(collects=True), suffix=suffix)


@pytest.mark.parametrize(
    "others",
    [
        ["a_wt.png", "b_wt.png", "c_wt.png"],  # a mask's word says which
        ["a_2_mask.png", "a2_mask.png", "b_2_mask.png"],  # of images that are gone
        ["a_mask (1).png", "b_mask - Copy.png", "b_mask_color.png"],  # what is made of a mask
    ],
)
def test_what_is_no_other_mask_of_an_image(tmp_path: Path, others: list[str]) -> None:
    touch(tmp_path / "i", "a.jpg", "b.jpg")
    touch(tmp_path / "m", "a_mask.png", "b_mask.png", *others)
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert [pair.mask.name for pair in pairs] == ["a_mask.png", "b_mask.png"]
    assert "3 masks without image" in report.notes[0] and not report.problems


def test_the_mask_of_an_image_that_is_gone_is_none_of_another(tmp_path: Path) -> None:
    touch(tmp_path / "i", "t1.jpg", "t2.jpg")
    touch(tmp_path / "m", "t1m.png", "t2m.png", "t1_1m.png")
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert [pair.mask.name for pair in pairs] == ["t1m.png", "t2m.png"]
    assert report.notes == [f"1 mask without image, e.g. {tmp_path}/m/t1_1m.png"]
    touch(tmp_path / "m", "t1_1.png", "t1_11.png", "t2_1.png", "t2_11.png")  # no cut in a number
    for name in ("t1m", "t2m", "t1_1m"):
        (tmp_path / "m" / f"{name}.png").unlink()
    with pytest.raises(UserError, match="has 2 masks"):
        find_pairs(tmp_path / "i", tmp_path / "m")


def test_images_and_masks_in_one_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "a_mask.png", "b.png", "b_mask.png", "c_mask.png")
    for suffix in (None, "_mask"):
        pairs, report = matched(tmp_path, tmp_path, suffix)
        assert [(p.image.name, p.mask.name) for p in pairs] == [
            ("a.png", "a_mask.png"), ("b.png", "b_mask.png"),
        ]  # fmt: skip
        assert report.notes == [f"1 mask without image, e.g. {tmp_path}/c_mask.png"]


def draw_both(folder: Path, image: str, mask: str, *, mode: str = "RGB", count: int = 10) -> None:
    """Write images of noise and masks of three values, whose names are `image` and `mask` with numbers for {}."""
    rng = np.random.default_rng(3)
    for number in range(1, count + 1):
        noise = rng.integers(0, 256, (24, 24, 3), np.uint8)
        Image.fromarray(noise).convert(mode).save(folder / image.format(number))
        classes = rng.choice(np.array([0, 128, 255], np.uint8), (24, 24))
        Image.fromarray(classes).save(folder / mask.format(number))


@pytest.mark.parametrize(
    ("image", "mask", "mode", "kind"),
    [
        ("{}.bmp", "{}.png", "RGB", ".png"),
        ("{}.png", "{}.bmp", "RGB", ".bmp"),
        ("{}.JPG", "{}.png", "L", ".png"),
        ("{}.tif", "{}.gif", "L", ".gif"),
        ("image_{}.png", "mask_{}.png", "L", "mask"),
        ("x{}.png", "a{}.png", "RGB", "a"),
        ("plant {}_rgb.png", "plant {}_label.png", "RGB", "label"),
        ("{}-photo.png", "{}-gt1.tif", "RGB", "gt1"),
    ],
)
def test_masks_in_the_images_folder_are_the_files_with_fewer_values(
    tmp_path: Path, image: str, mask: str, mode: str, kind: str
) -> None:
    draw_both(tmp_path, image, mask, mode=mode)
    Image.new("L", (24, 24)).save(tmp_path / mask.format(99))
    pairs, report = matched(tmp_path, tmp_path)
    found = {pair.image.name: pair.mask.name for pair in pairs}
    assert found == {image.format(number): mask.format(number) for number in range(1, 11)}
    assert not report.problems
    assert report.notes == [
        f"{tmp_path}: the {kind} files are the masks",
        f"1 mask without image, e.g. {tmp_path}/{mask.format(99)}",
    ]


@pytest.mark.parametrize(("first", "second"), [("left", "right"), ("cat", "dog"), ("train", "val")])
def test_a_suffix_that_fits_all_images_comes_before_their_first_words(
    tmp_path: Path, first: str, second: str
) -> None:
    draw_both(tmp_path, f"{first}_{{}}.png", f"{first}_{{}}_mask.png")
    draw_both(tmp_path, f"{second}_{{}}.png", f"{second}_{{}}_mask.png", mode="L")
    pairs, _ = matched(tmp_path, tmp_path)
    assert len(pairs) == 20
    assert all(pair.mask.name == f"{pair.image.stem}_mask.png" for pair in pairs)


@pytest.mark.parametrize(
    ("images", "masks"),
    [("images", "masks"), ("train/imgs", "train/Labels"), ("a/image/left", "a/gt2/left"), ("x", "x/masks")],
)  # fmt: skip
def test_folders_for_images_and_for_masks_may_be_given_as_one(
    tmp_path: Path, images: str, masks: str
) -> None:
    (tmp_path / images).mkdir(parents=True)
    (tmp_path / masks).mkdir(parents=True, exist_ok=True)
    draw_both(tmp_path, f"{images}/{{}}.png", f"{masks}/{{}}.png", mode="L", count=12)
    touch(tmp_path / "runs", "samples.png")
    pairs, report = matched(tmp_path, tmp_path)
    found = {str(p.image.relative_to(tmp_path)): str(p.mask.relative_to(tmp_path)) for p in pairs}
    assert found == {f"{images}/{k}.png": f"{masks}/{k}.png" for k in range(1, 13)}
    (problem,) = report.problems
    assert problem.startswith(f"no mask for {tmp_path}/runs/samples.png: ")  # of another program
    save_picture(torch.zeros(3, 9, 9, dtype=torch.uint8), tmp_path / "runs" / "samples.png")
    pairs, report = matched(tmp_path, tmp_path)
    assert len(pairs) == 12 and report.problems == []


def test_predictions_beside_the_images_are_no_images(tmp_path: Path) -> None:
    """`python predict.py image.jpg` writes image_mask.png next to it."""
    (tmp_path / "i").mkdir()
    (tmp_path / "m").mkdir()
    draw_both(tmp_path, "i/{}.png", "m/{}.png", mode="L")
    count = len(matched(tmp_path / "i", tmp_path / "m")[0])
    for name in ("1_mask", "2_overlay"):
        save_picture(torch.zeros(3, 9, 9, dtype=torch.uint8), tmp_path / "i" / f"{name}.png")
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert len(pairs) == count and report.problems == []
    assert report.notes[0] == f"left out: 2 predictions, e.g. {tmp_path}/i/1_mask.png"
    Image.new("L", (9, 9)).save(tmp_path / "i" / "3_mask.png")  # the user's
    _, report = matched(tmp_path / "i", tmp_path / "m")
    assert report.problems[0].startswith(f"no mask for {tmp_path}/i/3_mask.png: ")


@pytest.mark.parametrize("end", ["_cp_masks.png", "_masks.tif"])
def test_cellposes_own_files_beside_its_masks_are_none(tmp_path: Path, end: str) -> None:
    draw_both(tmp_path, "{}.png", f"{{}}{end}", mode="L")
    for path in tmp_path.glob("[0-9].png"):
        np.save(path.with_name(f"{path.stem}_seg.npy"), np.array({"masks": 1}), allow_pickle=True)
    pairs, report = matched(tmp_path, tmp_path)
    assert report.problems == [] and all(pair.mask.name.endswith(end) for pair in pairs) and pairs
    for path in tmp_path.glob("*_seg.npy"):
        np.save(path, np.zeros((9, 9), np.uint8))  # the user's own masks
    pairs, report = matched(tmp_path, tmp_path, "_seg")
    assert all(pair.mask.name.endswith("_seg.npy") for pair in pairs) and pairs


@pytest.mark.parametrize("name", ["masks", "truth/2026", "caf\u00e9", "cafe\u0301", "link"])
def test_masks_below_the_images_are_no_images(tmp_path: Path, name: str) -> None:
    images = tmp_path / "i"
    images.mkdir()
    if name == "link":
        (tmp_path / "elsewhere").mkdir()
        (images / name).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (images / name).mkdir(parents=True, exist_ok=True)
    draw_both(images, "{}.png", f"{name}/{{}}.png", mode="L")
    pairs, report = matched(images, images / name)
    assert [(pair.image.parent, pair.mask.parent) for pair in pairs] == [
        (images, images / name)
    ] * 10
    assert not report.problems and not report.notes


@pytest.mark.parametrize(("image", "mask"), [("image", "mask"), ("photo", "x"), ("x", "labels")])
def test_a_word_says_more_than_values(tmp_path: Path, image: str, mask: str) -> None:
    """Images of one bit, or masks with numbers of objects: masks have more values."""
    for number in range(5):
        Image.new("1", (24, 24)).save(tmp_path / f"{image}_{number}.png")
        numbers = np.arange(24 * 24, dtype=np.uint16).reshape(24, 24)
        Image.fromarray(numbers).save(tmp_path / f"{mask}_{number}.png")
    pairs, _ = matched(tmp_path, tmp_path)
    assert all(pair.image.name.startswith(image) for pair in pairs) and len(pairs) == 5


def test_two_kinds_of_masks_are_no_image_and_its_mask(tmp_path: Path) -> None:
    draw_both(tmp_path, "mask1_{}.png", "mask2_{}.png", count=4)
    for file in tmp_path.glob("mask1_*"):
        file.write_bytes((tmp_path / file.name.replace("mask1", "mask2")).read_bytes())
    with pytest.raises(UserError, match="no names are those of an image and its mask"):
        find_pairs(tmp_path, tmp_path)


@pytest.mark.parametrize("second", ["7-2", "7_2", "7 2", "8"])
def test_a_mask_for_each_object_is_to_be_imported(tmp_path: Path, second: str) -> None:
    """As in the Data Science Bowl of 2018; a second file of a name is no mask of the first."""
    for name in ("3f", "a0", "c4", "e9"):
        touch(tmp_path / name / "images", f"{name}.png")
        touch(tmp_path / name / "masks", "7.png", f"{second}.png", "b9.png")
    with pytest.raises(UserError, match="make masks of annotations with python -m unet_ddp import"):
        find_pairs(tmp_path, tmp_path)


def test_an_image_without_its_mask_is_named_if_most_masks_add_a_number(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{name}.png" for name in "abcdef"), *(f"{name}_1.png" for name in "abcde"))
    pairs, report = matched(tmp_path, tmp_path)
    assert [pair.mask.stem for pair in pairs] == ["a_1", "b_1", "c_1", "d_1", "e_1"]
    assert len(report.problems) == 1 and "f.png: looked for" in report.problems[0]


def test_blank_and_damaged_files_do_not_turn_images_and_masks(tmp_path: Path) -> None:
    draw_both(tmp_path, "{}.tif", "{}.png")
    for number in (1, 10, 2):  # the first by name
        Image.new("L", (24, 24)).save(tmp_path / f"{number}.tif")
        Image.new("L", (24, 24)).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"no image")
    pairs, _ = matched(tmp_path, tmp_path)
    assert len(pairs) == 10 and all(pair.mask.suffix == ".png" for pair in pairs)
    for path in tmp_path.iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(UserError, match="which are the masks is not clear"):
        find_pairs(tmp_path, tmp_path)


def test_an_ome_tiff_has_a_mask_of_another_type(tmp_path: Path) -> None:
    draw_both(tmp_path, "{}.ome.tif", "{}.png")
    pairs, _ = matched(tmp_path, tmp_path)
    assert len(pairs) == 10
    assert all(pair.image.name == f"{pair.mask.stem}.ome.tif" for pair in pairs)


def test_copies_in_another_type_are_not_taken_as_masks(tmp_path: Path) -> None:
    draw_both(tmp_path, "{}.bmp", "{}_mask.png")
    for file in tmp_path.glob("*.bmp"):
        Image.open(file).save(file.with_suffix(".tif"))
    pairs, report = matched(tmp_path, tmp_path)
    assert not pairs and "two images of one name" in report.problems[0]
    for file in tmp_path.glob("*.png"):
        file.unlink()
    message = (
        rf"which are the masks is not clear, e\.g\. of {tmp_path}/\d\.bmp and .*/\d\.tif; move"
    )
    with pytest.raises(UserError, match=message):
        find_pairs(tmp_path, tmp_path)


@pytest.mark.parametrize(
    "names", [["a.png", "b.png", "c.png"], ["x1.png", "x2.png"], ["1.png", "10.png"], ["only.png"]]
)
def test_no_image_is_its_own_mask(tmp_path: Path, names: list[str]) -> None:
    touch(tmp_path, *names)
    with pytest.raises(UserError) as caught:
        find_pairs(tmp_path, tmp_path)
    text = str(caught.value)
    assert "no names are those of an image and its mask" in text or "no mask for" in text


@pytest.mark.parametrize(
    ("image", "mask", "suffix"),
    [
        ("image_{}.jpg", "mask_{}.png", None),
        ("img{}.png", "label{}.png", None),
        ("{}_training.tif", "{}_manual1.gif", None),
        ("case_{:03}_0000.png", "case_{:03}.png", None),
        (
            "sub/frankfurt_{}_leftImg8bit.png",
            "sub/frankfurt_{}_gtFine_labelIds.png",
            "_gtFine_labelIds",
        ),
        ("satImage_{:03}.png", "groundtruth_{:03}.png", None),
        ("t1_{}_in.png", "t1_{}_out.png", None),
    ],
)
def test_names_that_differ_by_what_all_of_a_folder_share(
    tmp_path: Path, image: str, mask: str, suffix: str | None
) -> None:
    numbers = range(1, 13)
    touch(tmp_path / "i", *map(image.format, numbers))
    touch(tmp_path / "m", *map(mask.format, [*numbers, 99]))
    if suffix:
        touch(tmp_path / "m", *(mask.replace("labelIds", "color").format(n) for n in numbers))
    pairs, report = matched(tmp_path / "i", tmp_path / "m", suffix)
    found = {pair.image.name: pair.mask.name for pair in pairs}
    assert found == {Path(image.format(n)).name: Path(mask.format(n)).name for n in numbers}
    assert not report.problems
    first = min(map(image.format, numbers))
    assert report.notes[0].startswith(f"names differ: {tmp_path}/i/{first} goes with {tmp_path}/m/")


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("subject01_frame_{}.png", "subject02_frame_{}.png"),
        ("2023-01-05_{}.png", "2023-02-07_{}.png"),
    ],
)
def test_what_has_other_numbers_is_no_pair(tmp_path: Path, image: str, mask: str) -> None:
    touch(tmp_path / "i", *(image.format(n) for n in range(1, 9)))
    touch(tmp_path / "m", *(mask.format(n) for n in range(1, 9)))
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert not pairs and len(report.problems) == 8


@pytest.mark.parametrize(
    ("image", "mask", "is_pair"),
    [
        ("v0_img.png", "v0_lab.png", True),
        ("v0_img.png", "v1_lab.png", False),
        ("a.png", "b.png", False),
    ],
)
def test_one_image_and_one_mask(tmp_path: Path, image: str, mask: str, *, is_pair: bool) -> None:
    touch(tmp_path / "i", image)
    touch(tmp_path / "m", mask)
    pairs, _ = matched(tmp_path / "i", tmp_path / "m")
    assert len(pairs) == is_pair


def test_a_suffix_that_was_typed_may_be_a_number(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "a2.png", "b.png", "b2.png")
    pairs, _ = matched(tmp_path, tmp_path, "2")
    assert [pair.mask.name for pair in pairs] == ["a2.png", "b2.png"]


def test_names_are_not_guessed_if_an_image_would_have_no_mask(tmp_path: Path) -> None:
    touch(tmp_path / "i", *(f"image_{n}.jpg" for n in range(1, 9)))
    touch(tmp_path / "m", *(f"mask_{n}.png" for n in range(2, 12)))
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert not pairs and len(report.problems) == 8
    assert (
        f"no mask for {tmp_path}/i/image_1.jpg: looked for {tmp_path}/m/image_1.*"
        in report.problems[0]
    )


@pytest.mark.parametrize("lacking", [[1], [4], [8], [2, 5]])
def test_an_image_without_a_mask_is_named_among_names_that_differ(
    tmp_path: Path, lacking: list[int]
) -> None:
    touch(tmp_path / "i", *(f"image_{n}.jpg" for n in range(1, 9)))
    touch(tmp_path / "m", *(f"mask_{n}.png" for n in range(1, 9) if n not in lacking))
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert [pair.mask.name for pair in pairs] == [
        pair.image.with_suffix(".png").name.replace("image", "mask") for pair in pairs
    ]
    assert len(pairs) == 8 - len(lacking)
    first = next(n for n in range(1, 9) if n not in lacking)
    goes = f"{tmp_path}/i/image_{first}.jpg goes with {tmp_path}/m/mask_{first}.png"
    assert report.problems == [
        f"no mask for {tmp_path}/i/image_{n}.jpg, as others have; names differ: {goes}: add such a mask, or remove the image"
        for n in lacking
    ]


def test_few_masks_say_nothing_of_names_that_differ(tmp_path: Path) -> None:
    touch(tmp_path / "i", *(f"image_{n}.jpg" for n in range(1, 9)))
    touch(tmp_path / "m", *(f"mask_{n}.png" for n in range(1, 5)))
    pairs, report = matched(tmp_path / "i", tmp_path / "m")
    assert not pairs and len(report.problems) == 8


def test_links_in_a_circle_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path / "i", "sub/a.jpg")
    touch(tmp_path / "m", "sub/a.png")
    (tmp_path / "i" / "sub" / "loop").symlink_to(tmp_path / "i")
    assert [pair.name for pair in find_pairs(tmp_path / "i", tmp_path / "m")] == ["sub/a"]


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    touch(tmp_path / "i", "lone.jpg", "twice.jpg", "twice.png", "two.jpg", "good.jpg")
    touch(tmp_path / "m", "twice.png", "two.png", "two.gif", "good.png")
    with pytest.raises(UserError) as caught:
        find_pairs(tmp_path / "i", tmp_path / "m")
    i, m = tmp_path / "i", tmp_path / "m"
    assert f"no mask for {i}/lone.jpg: looked for {m}/lone.*" in str(caught.value)
    assert f"two images of one name: {i}/twice.jpg and {i}/twice.png" in str(caught.value)
    assert f"two masks for {i}/two.jpg: {m}/two.gif and {m}/two.png" in str(caught.value)


@pytest.mark.parametrize(
    ("images", "masks", "said"),
    [
        ("i", "gone", "gone: not found"),
        ("file.png", "m", "file.png: is a file, not a folder; name single files in a --list"),
        (
            "i",
            "l.json",
            "l.json: is a file, not a folder; python -m unet_ddp import makes masks of",
        ),
        ("i", "l.kml", "l.kml polygons of other maps"),
        (
            "empty",
            "m",
            "empty: contains no images (.bmp, .gif, .jpeg, .jpg, .npy, .png, .tif, .tiff, .webp); export others as TIFF",
        ),
        ("i", "empty", "empty: contains no masks (.bmp"),
    ],
)
def test_a_folder_that_is_no_set_is_named(
    tmp_path: Path, images: str, masks: str, said: str
) -> None:
    touch(tmp_path, "i/a.png", "m/a.png", "file.png", "empty/notes.txt", "l.json", "l.kml")
    with pytest.raises(UserError) as caught:
        find_pairs(tmp_path / images, tmp_path / masks)
    assert said in str(caught.value)


def test_a_report_raises_at_once_or_collects() -> None:
    def fail() -> int:
        raise UserError("wrong")

    with pytest.raises(UserError, match="wrong"):
        Report().attempt(fail)
    with pytest.raises(UserError, match="a; b"):
        Report().add_problems(["a", "b"])
    assert Report().attempt(lambda: 3) == 3
    report = Report(collects=True)
    report.add_problems(["a", "b"])
    report.add_problems([])
    assert report.attempt(fail) is None
    assert report.problems == ["a", "b", "wrong"]


def test_a_problem_that_many_files_share_is_said_once() -> None:
    with pytest.raises(UserError, match=r"^no cache; a$"):
        Report().add_problems(["no cache", "a", *["no cache"] * 9])
    report = Report(collects=True)
    report.add_problems(["no cache", "a", *["no cache"] * 9])
    assert report.problems == ["no cache", "a"]


@pytest.mark.parametrize(
    ("count", "rest"), [(3, ""), (4, "; and 1 more, listed by"), (9, "6 more")]
)
def test_an_error_names_three_problems(count: int, rest: str) -> None:
    Report().add_problems([])
    problems = [f"p{k}" for k in range(count)]
    with pytest.raises(UserError) as caught:
        Report().add_problems(problems)
    assert str(caught.value).startswith("p0; p1; p2")
    assert "p3" not in str(caught.value) and rest in str(caught.value)
    assert bool(rest) == ("more" in str(caught.value))


def test_a_mask_of_another_size_is_named_with_both_sizes() -> None:
    message = mask_size_message(Path("m/a.png"), (480, 640), (960, 1280))
    assert message == "m/a.png is 640x480, its image 1280x960; resize one"
    advice = "resize one, or use --resize-masks"
    message = mask_size_message(Path("m/a.png"), (480, 640), (960, 1280), advice)
    assert message == f"m/a.png is 640x480, its image 1280x960; {advice}"
    message = mask_size_message(Path("m/a.png"), (480, 640), (640, 480))
    assert message == "m/a.png is 640x480, its image 480x640; one of them is rotated by 90 degrees"


# -- lists ---------------------------------------------------------------------------------


def listed(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    touch(folder, "i/a.png", "i/b.png", "m/a.png", "m/b.png", "j/a.png")
    (folder / "list.csv").write_text(text, encoding=encoding)
    return folder / "list.csv"


def read(path: Path) -> tuple[Pairs, list[str]]:
    report = Report(collects=True)
    return read_list(path, report), report.problems


def test_a_list_names_pairs_groups_and_sides(tmp_path: Path) -> None:
    rows = 'mask,image,group,split\nm/b.png, "i/b.png",car ,Val\nm/a.png,i/a.png ,,train\n'
    pairs, problems = read(listed(tmp_path, rows, "utf-8-sig"))
    assert problems == []
    assert list(pairs) == [
        Pair("i/a", tmp_path / "i/a.png", tmp_path / "m/a.png", None, "training"),
        Pair("i/b", tmp_path / "i/b.png", tmp_path / "m/b.png", "car ", "validation"),
    ]


def test_columns_of_a_list_that_are_not_used_are_named(tmp_path: Path) -> None:
    """A wrong name would drop the groups or the split without a word."""
    folder = make_set(tmp_path, 1)
    report = Report()
    for header in ("image,mask,Group,split,source,", "image,mask,groups,split,Spilt,"):
        row = "imgs/{0},masks/{0},a,training,b,".format(next((folder / "imgs").iterdir()).name)
        (folder / "list.csv").write_text(f"{header}\n{row}\n")
        find_pairs(report=report, listed=folder / "list.csv")
    assert report.notes == [f"columns of {folder}/list.csv that are not used: 'groups', 'spilt'"]


@pytest.mark.parametrize("column", ["image", "mask", "group", "split"])
def test_a_column_that_is_there_twice_is_told(tmp_path: Path, column: str) -> None:
    names = ["image", "mask", "group", "split"]
    row = {"image": "i/a.png", "mask": "m/a.png", "group": "one", "split": "train"}
    header = [*names, column]
    path = listed(tmp_path, ",".join(header) + "\n" + ",".join(map(row.get, header)) + "\n")
    report = Report()
    assert len(read_list(path, report)) == 1
    assert report.warnings == [
        f"{path}: 2 columns are named {column}; the last is used: remove the others"
    ]


def test_groups_of_a_list_that_are_on_both_sides_are_told(tmp_path: Path) -> None:
    def warn(*groups: str, sides: tuple[str, str] = ("train", "val")) -> list[str]:
        rows = [f"i/{k}.png,m/{k}.png,{g},{s}" for k, g, s in zip("ab", groups, sides, strict=True)]
        report = Report()
        read_list(listed(tmp_path, "\n".join(["image,mask,group,split", *rows])), report)
        return report.warnings

    assert warn("car", "car") == [
        f"{tmp_path}/list.csv: 1 group on both sides, e.g. car: validation scores images like those of training; give "
        "all rows of a group one split"
    ]
    for sides in (("train", "train"), ("train", "test"), ("", "")):
        assert warn("car", "car", sides=sides) == []
    assert warn("car", "bus") == warn("", "") == []
    (line,) = warn("car", "car ")
    assert line.endswith(": 'car', 'car ' are different groups: remove the blanks")


def test_a_list_names_sources(tmp_path: Path) -> None:
    rows = "image,mask,Source\ni/a.png,m/a.png, by night \ni/b.png,m/b.png,\n"
    pairs, problems = read(listed(tmp_path, rows))
    assert problems == [] and [pair.source for pair in pairs] == ["by night", None]


def test_a_list_may_name_files_of_this_machine_by_addresses(tmp_path: Path) -> None:
    image, mask = tmp_path / "i/a.png", tmp_path / "m/a.png"
    pairs, problems = read(listed(tmp_path, f"image,mask\nfile://{image},file://{mask}\n"))
    assert problems == []
    assert list(pairs) == [Pair(str(image.with_suffix("")), image, mask)]


@pytest.mark.parametrize(
    ("word", "side"),
    [("train", "training"), ("TRAINING", "training"), ("val", "validation"), ("valid", "validation"),
     ("validation", "validation"), ("test", "left out"), ("", None)],
)  # fmt: skip
def test_words_for_a_side(tmp_path: Path, word: str, side: str | None) -> None:
    pairs, _ = read(listed(tmp_path, f"image,mask,split\ni/a.png,m/a.png,{word}\n"))
    assert [pair.side for pair in pairs] == [side]


def test_bad_rows_are_named_with_their_lines(tmp_path: Path) -> None:
    rows = [
        "image,mask,split", "i/a.png,m/a.png,train", "i/a.png,m/a.png,train", "i/b.png,,train",
        "i/b.png,m/b.png,dev", "i/gone.png,m/b.png,val", "i/b.png,m/gone.png,val", "i/a.jpg,m/b.png,",
        ",m/b.png,train",
    ]  # fmt: skip
    path = listed(tmp_path, "\n".join(rows))
    touch(tmp_path, "i/a.jpg")
    pairs, problems = read(path)
    assert [pair.name for pair in pairs] == ["i/a"]
    assert problems == [
        f"{path}, line 3: {tmp_path}/i/a.png is listed twice",
        f"{path}, line 4: image or mask is missing",
        f"{path}, line 5: split 'dev'; it is training, validation or test",
        f"{path}, line 6: {tmp_path}/i/gone.png: not found",
        f"{path}, line 7: {tmp_path}/m/gone.png: not found",
        f"{path}, line 8: {tmp_path}/i/a.jpg has the name of {tmp_path}/i/a.png",
        f"{path}, line 9: image or mask is missing",
    ]


def test_a_column_of_sides_must_be_full(tmp_path: Path) -> None:
    rows = "image,mask,split\ni/a.png,m/a.png,train\ni/b.png,m/b.png,\n"
    (problem,) = read(listed(tmp_path, rows))[1]
    assert "some rows name their split and some do not" in problem


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,b\n1,2\n", "must name the columns"), ("image,mask\n", "rows must follow"), ("", "rows must")],
)  # fmt: skip
def test_a_file_that_is_no_list(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(listed(tmp_path, text))
    with pytest.raises(UserError, match=r"gone\.csv: No such file or directory; give a CSV"):
        read(tmp_path / "gone.csv")


def test_rows_of_a_list_that_name_no_file(tmp_path: Path) -> None:
    """Folders, pipes, NUL, names that none can have; a list that is a pipe is not opened."""
    long = "x" * 300
    names = ("i", "pipe.png", "a\0.png", f"{long}.png", ".")
    path = listed(tmp_path, "image,mask\n\n" + "".join(f"{name},m/a.png\n" for name in names))
    os.mkfifo(tmp_path / "pipe.png")
    assert read(path)[1] == [
        f"{path}, line 3: {tmp_path}/i: is not a file",
        f"{path}, line 4: {tmp_path}/pipe.png: is not a file",
        f"{path}, line 5: {tmp_path}/a\0.png: not found",
        f"{path}, line 6: {tmp_path}/{long}.png: not found",
        f"{path}, line 7: {tmp_path}: is not a file",
    ]
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match=r"pipe\.csv: is a pipe, socket or device, not a file"):
        read(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match="xx: not found"):
        find_pairs(tmp_path / long, tmp_path / "m")


def test_two_columns_are_enough(tmp_path: Path) -> None:
    ((pair,), _) = read(listed(tmp_path, "image,mask\ni/a.png,m/a.png\n"))
    assert (pair.group, pair.side) == (None, None)
    with pytest.raises(
        UserError, match=r"list\.csv: line 2: a cell has more than 4096 characters; give"
    ):
        read(listed(tmp_path, "image,mask\n" + "x" * 140_000))


# -- object storage ------------------------------------------------------------------------


def test_masks_in_a_folder_for_each_class_are_for_the_import(tmp_path: Path) -> None:
    touch(tmp_path / "i", "sub/a.jpg")
    touch(tmp_path / "m", "car/sub/a.png", "tree/sub/a.png")
    with pytest.raises(UserError, match=r"no mask for .*; if its folders are classes, .* import"):
        find_pairs(tmp_path / "i", tmp_path / "m")


def test_a_folder_that_can_not_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its images would be missing without a word."""
    make_set(tmp_path, 3)
    hidden, scandir = str(tmp_path / "imgs" / "more"), os.scandir
    Path(hidden).mkdir()

    def refuse(path: str) -> object:
        if path == hidden:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"more: Permission denied; make it readable$"):
        find_pairs(tmp_path / "imgs", tmp_path / "masks")
