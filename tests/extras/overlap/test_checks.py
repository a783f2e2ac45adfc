"""What is said of classes that overlap, or that do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.extras.overlap.test_folders import IGNORED, SIZE, plane, save
from tests.extras.packs.test_command import pack
from unet_ddp.checks.check import check_dataset, prepare_data
from unet_ddp.cli import parse_train
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.matching import Report, find_pairs
from unet_ddp.errors import UserError
from unet_ddp.extras.overlap.checks import check_packed_classes

IDS = (1, 2, 3, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return four images: organs in rows 0 to 3, tumours in rows 3 to 4, vessels in none."""
    for k in IDS:
        pixels = np.random.default_rng(k).integers(0, 255, (*SIZE, 3), np.uint8)
        save(tmp_path / "i" / f"{k}.png", pixels)
        save(tmp_path / "m" / "organ" / f"{k}.png", plane(0, 4))
        save(tmp_path / "m" / "tumour" / f"{k}.png", plane(3, 5))
        save(tmp_path / "m" / "vessel" / f"{k}.png", plane(0, 0))
    return tmp_path


def configure(folder: Path, *flags: str) -> DataConfig:
    given = ["--images", str(folder / "i"), "--masks", str(folder / "m"), "--validation", "25"]
    return parse_train([*given, *flags]).data


def check(folder: Path, *flags: str) -> Report:
    report = Report(collects=True)
    check_dataset(configure(folder, *flags), report, parts=DATA_PARTS, seed=0)
    return report


def test_folders_that_overlap_need_the_flag(folder: Path) -> None:
    assert check(folder).problems == [
        f"{folder}/m: a folder for each class, and 20.0 % of the labelled pixels are in two or more (organ and "
        f"tumour 20.0 %, e.g. {folder}/m/*/1.png): use --overlap"
    ]
    report = check(folder, "--overlap")
    assert report.problems == []
    assert not any("the same pixels" in line for line in report.warnings)
    assert not any("is left" in line for line in report.warnings)  # of vessels, which are in none
    assert report.notes[0] == (
        "20.0 % of the labelled pixels are in two or more classes: organ and tumour 20.0 % (e.g. "
        f"{folder}/m/*/1.png)"
    )
    assert "classes: organ, tumour, vessel, which may overlap" in report.notes


def test_folders_that_do_not_overlap_are_for_the_import(folder: Path) -> None:
    for k in IDS:
        save(folder / "m" / "tumour" / f"{k}.png", plane(4, 5))
    (problem,) = check(folder).problems
    assert problem.startswith(
        f"{folder}/m: a folder for each class, and no pixel is in two classes"
    )
    assert f"python -m unet_ddp import {folder}/m" in problem
    report = check(folder, "--overlap")
    assert report.problems == []
    assert any("exclusive classes usually learn better" in line for line in report.warnings)


def test_void_in_the_masks_of_a_class(folder: Path) -> None:
    for k in IDS:
        save(folder / "m" / "organ" / f"{k}.png", plane(0, 4, 1) | plane(0, 1))
        save(folder / "m" / "tumour" / f"{k}.png", plane(3, 5, 1))
        save(folder / "m" / "vessel" / f"{k}.png", plane(5, 6))  # 255 alone
    flags = ["--overlap", "--ignore-index", "255"]
    report = check(folder, *flags)
    assert "3 values (0, 1, 255)" in check(folder, "--overlap").problems[0]
    assert (report.problems, report.notes[0][:6]) == ([], "25.0 %")
    assert "classes: organ, tumour, vessel, which may overlap; 255 is ignored" in report.notes
    data = prepare_data(configure(folder, *flags), parts=DATA_PARTS, seed=0)
    dataset = SegmentationDataset(data.split.training, data.labels, data.format, scale=1.0)
    for ids in (dataset.read_truth(0), dataset[0, 0].mask.numpy()):
        assert [ids[row, 0] for row in range(6)] == [IGNORE_ID, 1, 1, 3, 2, IGNORE_ID]
    for name in ("organ", "tumour"):
        for k in IDS:
            save(folder / "m" / name / f"{k}.png", plane(0, 4))
    (problem,) = check(folder, *flags).problems
    assert problem.startswith("--ignore-index 255: all masks are empty but for it")


def find_truth(data: PreparedData, labels: Labels | None = None) -> list[int]:
    """Return the bit fields of the first image's rows."""
    pairs = data.split.training
    dataset = SegmentationDataset(pairs, labels or data.labels, data.format, scale=1.0)
    ids: list[int] = dataset.read_truth(0)[:, 0].tolist()
    return ids


OVERLAP = "--overlap", "--ignore-index"
VOID_AND_ORGANS = [IGNORE_ID, 1, 1, 3, 2, 0]


def with_void(folder: Path, void: int, one: int = 255) -> None:
    """Give row 0 of the organs a value for void."""
    for k in IDS:
        save(folder / "m" / "organ" / f"{k}.png", plane(0, 1, void) | plane(1, 4, one))
        save(folder / "m" / "tumour" / f"{k}.png", plane(3, 5, one))


@pytest.mark.parametrize("void", [1, 2, 3, 4])
def test_void_of_folders_is_no_sum_of_bits(folder: Path, tmp_path: Path, void: int) -> None:
    """Neither in the folders' files nor in a pack of them, where it is a bit already."""
    with_void(folder, void)
    config = configure(folder, "--overlap", "--ignore-index", str(void))
    for each in (config, pack(config, tmp_path / "pack")):
        data = prepare_data(each, parts=DATA_PARTS, seed=0)
        assert find_truth(data) == VOID_AND_ORGANS
        assert f"classes: organ, tumour, vessel, which may overlap; {void} is ignored" in data.notes
        labels = Labels.from_dict(data.labels.to_dict())
        codes = np.array([0, 1, 2, 3, 4, IGNORED], np.int32)
        mask = data.split.training[0].mask
        assert labels.to_ids(codes, mask).tolist() == [0, 1, 2, 3, 4, IGNORE_ID]
        other = prepare_data(configure(folder, *OVERLAP, str(void)), parts=DATA_PARTS, seed=0)
        assert find_truth(other, labels) == VOID_AND_ORGANS


def test_void_may_be_the_last_of_eight_bits(folder: Path) -> None:
    for number in range(5):
        for k in IDS:
            save(folder / "m" / f"part{number}" / f"{k}.png", plane(number, 6))
    with_void(folder, 128)
    assert check(folder, *OVERLAP, "128").problems == []


def test_zero_is_no_void_of_folders(folder: Path) -> None:
    save(folder / "m" / "vessel" / "1.png", plane(0, 6))
    for k in IDS:
        save(folder / "m" / "organ" / f"{k}.png", plane(0, 6))
        save(folder / "m" / "tumour" / f"{k}.png", plane(0, 6))
    assert check(folder, *OVERLAP, "0").problems == [
        "--ignore-index 0: in the masks of a folder for each class, 0 is where the class is not; name another "
        "value, or leave it out"
    ]


def test_a_class_that_is_all_void_is_told(folder: Path) -> None:
    """Masks of 0 and 255 among others of 0 and 1: all pixels of the class are ignored."""
    for k in IDS:
        save(folder / "m" / "tumour" / f"{k}.png", plane(3, 5, 1))
    (warning,) = [line for line in check(folder, *OVERLAP, "255").warnings if "is left" in line]
    assert warning == (
        "--ignore-index 255: no pixel of organ, vessel is left; if 255 is the class in its masks, leave the flag "
        "out, or save the class as 1"
    )
    with_void(folder, 255, one=0)
    save(folder / "m" / "tumour" / "1.png", plane(0, 1, 1))  # ignored all the same
    (problem,) = check(folder, *OVERLAP, "255").problems
    assert problem.startswith("--ignore-index 255: all masks are empty but for it")


def test_a_network_from_before_void_reads_its_masks_as_then(folder: Path) -> None:
    """--ignore-index 255 had no effect on masks of 0 and 255, where 255 is the class."""
    data = prepare_data(configure(folder, "--overlap"), parts=DATA_PARTS, seed=0)
    plain = data.labels.to_dict() | {"ignore": 255}
    plain.pop("void", None)
    assert find_truth(data, Labels.from_dict(plain)) == [1, 1, 1, 3, 2, 0]


def test_a_pack_has_the_classes_of_the_network(folder: Path, tmp_path: Path) -> None:
    """In their order: nothing in its masks says which bit is which class."""
    names = ["--class-names", "vessel", "organ", "tumour"]
    own, other = (
        prepare_data(configure(folder, "--overlap", *more), parts=DATA_PARTS, seed=0)
        for more in ([], names)
    )
    pairs = prepare_data(
        pack(configure(folder, "--overlap"), tmp_path / "p"), parts=DATA_PARTS, seed=0
    ).split.validation
    for labels, found in ((own.labels, pairs), (other.labels, other.split.validation)):
        check_packed_classes(found, labels, "p")
    with pytest.raises(UserError) as raised:
        check_packed_classes(pairs, other.labels, "p")
    assert str(raised.value) == (
        "p: the classes of its masks are organ, tumour, vessel, those of the network vessel, organ, tumour: pack "
        "masks of these classes in this order, or use --images and --masks with the folders"
    )
    unnamed = Labels.from_dict(own.labels.to_dict() | {"names": None})
    check_packed_classes(pairs, unnamed, "p")
    two = Labels.from_dict(unnamed.to_dict() | {"values": [1, 2]})
    with pytest.raises(UserError, match="vessel, those of the network 1, 2: pack"):
        check_packed_classes(pairs, two, "p")


def test_masks_that_lack(folder: Path) -> None:
    for k in IDS[:3]:
        (folder / "m" / "vessel" / f"{k}.png").unlink()
    (folder / "m" / "nerve").mkdir()
    lacking = f"3 of 4 images lack a file in {folder}/m/vessel, e.g. 1"
    report = check(folder, "--overlap")
    assert f"{lacking}: background there" in report.notes
    assert f"{folder}/m/nerve: contains no masks, so it is no class" in report.warnings
    assert check(folder, "--overlap", "--all-masks").problems == [
        f"{lacking}; add them, or leave --all-masks out"
    ]


def test_validation_masks_have_the_same_folders(folder: Path) -> None:
    for k in IDS:
        save(folder / "vi" / f"{k}.png", plane(0, 1))
        for name in ("organ", "nerve"):
            save(folder / "vm" / name / f"{k}.png", plane(0, 1))
    others = ["--val-images", str(folder / "vi"), "--val-masks", str(folder / "vm")]
    (problem,) = check(folder, "--overlap", *others).problems
    assert problem == (
        f"other folders in {folder}/m (organ, tumour, vessel) than in {folder}/vm (nerve, organ): give both "
        "the same classes"
    )


def test_a_page_for_each_class(folder: Path) -> None:
    planes = np.stack([plane(0, 4), plane(3, 5)])
    for k in IDS:
        (folder / "p").mkdir(exist_ok=True)
        tifffile.imwrite(folder / "p" / f"{k}.tif", planes, photometric="minisblack")
    flags = ["--masks", str(folder / "p"), "--overlap", "--class-names", "organ", "tumour"]
    data = prepare_data(configure(folder, *flags), parts=DATA_PARTS, seed=0)
    assert data.notes[0].startswith(
        "20.0 % of the labelled pixels are in two or more classes: organ and tumour 20.0 %"
    )
    pairs, form = data.split.training, data.format
    dataset = SegmentationDataset(pairs, data.labels, form, scale=1.0)
    ids = dataset.read_truth(0)
    assert [has[3, 0] for has in data.labels.planes(ids)] == [True, True]
    with pytest.raises(UserError, match="holds several frames or pages"):
        prepare_data(configure(folder, *flags[:2]), parts=DATA_PARTS, seed=0)


def test_masks_of_different_numbers_of_pages_are_told(folder: Path) -> None:
    planes = np.stack([plane(0, 4), plane(3, 5), plane(0, 2), plane(5, 6)])
    (folder / "p").mkdir()
    for k in IDS:
        tifffile.imwrite(folder / "p" / f"{k}.tif", planes, photometric="minisblack")
    flags = ["--masks", str(folder / "p"), "--overlap"]
    assert check(folder, *flags).warnings == []
    tifffile.imwrite(folder / "p" / "3.tif", planes[:2], photometric="minisblack")
    report = check(folder, *flags)
    assert report.problems == []
    assert report.warnings == [
        f"{folder}/p/3.tif has 2 bands or pages, {folder}/p/1.tif has 4: each is a class by its place; save a black "
        "one for each class that a mask lacks"
    ]
    tifffile.imwrite(folder / "p" / "3.tif", planes[:3], photometric="minisblack")
    problem, *_ = check(folder, *flags).problems
    assert "3.tif is a colour image or of 3 bands" in problem
    tifffile.imwrite(folder / "p" / "3.tif", planes[0], photometric="minisblack")
    assert any("3.tif has 1 band or page" in line for line in check(folder, *flags).warnings)


@pytest.mark.parametrize("kind", ["folders", "pages"])
def test_classes_with_the_same_pixels_are_told(folder: Path, kind: str) -> None:
    masks = [plane(0, 4), plane(3, 5), plane(0, 4)]
    for k in IDS:
        for name, mask in zip(("organ", "tumour", "vessel"), masks, strict=True):
            save(folder / "m" / name / f"{k}.png", mask)
        pages = np.stack([*masks, plane(5, 6)])
        (folder / "p").mkdir(exist_ok=True)
        tifffile.imwrite(folder / "p" / f"{k}.tif", pages, photometric="minisblack")
    flags = [] if kind == "folders" else ["--masks", str(folder / "p")]
    names = "organ, vessel" if kind == "folders" else "1, 3"
    assert check(folder, *flags, "--overlap").warnings == [
        f"the classes {names} have the same pixels in all masks; check that each mask is of its own class"
    ]


@pytest.mark.parametrize(
    ("change", "left"), [("vessel", "organ, tumour"), ("", "nerve, organ, tumour, vessel")]
)
def test_a_network_wants_a_folder_for_each_of_its_classes(
    folder: Path, change: str, left: str
) -> None:
    """Without the folder, what is found of the class would all be wrong, and nobody told."""
    data = prepare_data(configure(folder, "--overlap"), parts=DATA_PARTS, seed=0)
    if change:
        shutil.rmtree(folder / "m" / change)
    else:
        save(folder / "m" / "nerve" / "1.png", plane(0, 1))
    pairs = find_pairs(folder / "i", folder / "m", planes=True)
    dataset = SegmentationDataset(pairs, data.labels, data.format, scale=1.0)
    with pytest.raises(UserError) as raised:
        dataset.read_truth(0)
    assert str(raised.value) == (
        f"{folder}/m: its folders with masks are {left}; the network's classes are organ, tumour, vessel: give it a "
        "folder for each, with a black mask if a class occurs nowhere"
    )
