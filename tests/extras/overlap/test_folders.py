"""Masks in a folder for each class become one mask of codes."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tifffile
from PIL import Image

from unet_ddp.checks.scan import scan
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Ids
from unet_ddp.data.matching import Report, find_pairs, read_list
from unet_ddp.data.pairs import Pairs, collect
from unet_ddp.data.readers.base import Codes, ImageFormat
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError
from unet_ddp.extras.cache.samples import SampleCache
from unet_ddp.extras.overlap.folders import class_folders, read_codes, split_marked
from unet_ddp.runs.same_data import measure_files

IGNORED = 1 << 15
SIZE = (6, 8)


def save(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".tif":
        tifffile.imwrite(path, values)
    else:
        Image.fromarray(values).save(path)
    return path


def plane(top: int, bottom: int, value: int = 255) -> np.ndarray:
    """Return a mask (6, 8) with these rows in the class."""
    mask = np.zeros(SIZE, np.uint8)
    mask[top:bottom] = value
    return mask


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a set of two images: organs overlap tumours in rows 2 and 3 of sub/a; b has no tumour."""
    for name in ("sub/a", "b"):
        save(tmp_path / "i" / f"{name}.jpg", np.full((*SIZE, 3), 90, np.uint8))
    save(tmp_path / "m" / "organ" / "sub" / "a.png", plane(0, 4))
    save(tmp_path / "m" / "organ" / "b.PNG", plane(1, 2, 1))
    save(tmp_path / "m" / "tumour" / "sub" / "a.tif", plane(2, 6, 7))
    return tmp_path


def find(folder: Path, **how: Any) -> Pairs:
    return find_pairs(folder / "i", folder / "m", planes=True, **how)


def codes_a() -> np.ndarray:
    return plane(0, 4, 1) | plane(2, 6, 2)


def test_folders_are_found_by_themselves_and_read_as_codes(folder: Path) -> None:
    pairs = find(folder)
    assert [(pair.name, pair.mask) for pair in pairs] == [
        ("b", folder / "m" / "*" / "b.png"),
        ("sub/a", folder / "m" / "*" / "sub" / "a.png"),
    ]
    assert class_folders(folder / "m") == ["organ", "tumour"]
    assert split_marked(pairs[1].mask) == (folder / "m", Path("sub/a.png"))
    assert split_marked(folder / "m" / "organ" / "b.PNG") is None
    sent: Pairs = pickle.loads(pickle.dumps(pairs))
    with sent.local(sent[1].mask) as local, Image.open(local) as opened:
        assert opened.mode == "L"
        np.testing.assert_array_equal(np.array(opened), codes_a())
    assert not local.exists()
    np.testing.assert_array_equal(read_codes(pairs[0].mask), plane(1, 2, 1))  # no tumour
    with sent.local(sent[0].image) as local:
        assert local == sent[0].image


def test_other_folders_are_what_they_were(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no mask for .*; if its folders are classes, .* import"):
        find_pairs(folder / "i", folder / "m")
    save(folder / "m" / "b.png", plane(1, 2))  # an image has a mask of its name
    with pytest.raises(UserError, match=r"no mask for .*a\.jpg.*; if its folders are classes"):
        find(folder)
    save(folder / "m" / "sub" / "a.png", plane(1, 2))
    assert [pair.mask.parent.name for pair in find(folder)] == ["m", "sub"]
    save(tmp_path / "one" / "organ" / "b.png", plane(1, 2))
    with pytest.raises(UserError, match="if its folders are classes"):  # of one class
        find_pairs(folder / "i", tmp_path / "one", planes=True)
    save(tmp_path / "one" / "i" / "b.png", plane(1, 2))
    with pytest.raises(UserError, match="if its folders are classes"):  # the images among the masks
        find_pairs(tmp_path / "one" / "i", tmp_path / "one", planes=True)


def test_names_may_have_a_suffix_and_masks_no_image(folder: Path) -> None:
    for path in sorted((folder / "m").rglob("*.*")):
        path.rename(path.with_name(f"{path.stem}_mask{path.suffix}"))
    save(folder / "m" / "organ" / "c_mask.png", plane(1, 2))
    report = Report()
    pairs = find_pairs(folder / "i", folder / "m", report, planes=True)
    assert [pair.mask.name for pair in pairs] == ["b_mask.png", "a_mask.png"]
    assert report.notes == [f"1 mask without image, e.g. {folder}/m/*/c_mask.png"]
    assert list(find(folder, suffix="_mask").names()) == ["b", "sub/a"]


@pytest.mark.parametrize("of_organs", ["{}_organ", "{}"])
def test_names_that_end_with_their_class_are_refused(folder: Path, of_organs: str) -> None:
    """A suffix is that of all folders: the other class would be left out."""
    for path in sorted((folder / "m").rglob("*.*")):
        is_organ = "organ" in path.parts
        stem = of_organs.format(path.stem) if is_organ else f"{path.stem}_tumour"
        path.rename(path.with_name(f"{stem}{path.suffix}"))
    with pytest.raises(UserError) as raised:
        find_pairs(folder / "i", folder / "m", planes=True)
    text = str(raised.value)
    assert text.startswith(f"{folder}/m: masks are named by their class, e.g. {folder}/m/organ/")
    assert "_tumour" in text and text.endswith("in all folders, as car/x.png and tree/x.png")
    with pytest.raises(
        UserError, match=r"^no mask for .*b\.jpg: looked for .*b_tumour"
    ):  # as named
        find(folder, suffix="_tumour")


def test_what_is_wrong_with_the_names(folder: Path) -> None:
    save(folder / "m" / "organ" / "b.tif", plane(1, 2))
    report = Report(collects=True)
    save(folder / "i" / "c.jpg", plane(1, 2))
    find_pairs(folder / "i", folder / "m", report, planes=True)
    two, none = report.problems
    assert two.startswith("two masks for") and "m/organ/b.PNG and" in two and "m/organ/b.tif" in two
    assert (
        none.startswith(f"no mask for {folder}/i/c.jpg") and "name masks like their images" in none
    )
    for number in range(14):
        save(folder / "m" / f"part{number}" / "b.png", plane(1, 2))
    with pytest.raises(UserError, match=r"m: 16 folders of classes; at most 15 can overlap"):
        find(folder)


@pytest.mark.parametrize(
    ("values", "expected", "error"),
    [
        ([0, 255], [0, 1], ""),
        ([0, 7], [0, 1], ""),
        ([0, 0], [0, 0], ""),
        ([255, 255], [1, 1], ""),
        (
            [0, 1, 255],
            None,
            r"3 values .*; if 255 marks pixels to ignore, train with --ignore-index 255$",
        ),
        (
            [0, 1, 2],
            None,
            r"3 values \(0, 1, 2\); the mask of a class .* has 0 and one other value",
        ),
        ([0, 90, 180, 255], None, r"4 values \(0, 90, 180, 255\); .* 0 and one other value$"),
    ],
)
def test_values_of_a_class(
    folder: Path, values: list[int], expected: list[int] | None, error: str
) -> None:
    path = save(folder / "m" / "organ" / "b.PNG", np.array([values] * 6, np.uint8))
    (folder / "m" / "tumour" / "b.png").unlink(missing_ok=True)
    mask = find(folder)[0].mask
    if expected is None:
        with pytest.raises(UserError, match=error) as raised:
            read_codes(mask)
        assert str(raised.value).startswith(f"{path}: ")
    else:
        np.testing.assert_array_equal(read_codes(mask), [expected] * 6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 255], [0, 1, IGNORED]),
        ([0, 0, 255], [0, 0, IGNORED]),  # alone, 255 is the class
        ([0, 7, 7], [0, 1, 1]),
    ],
)
def test_ignored_pixels_of_a_class_are_ignored_in_all(
    folder: Path, values: list[int], expected: list[int]
) -> None:
    save(folder / "m" / "organ" / "b.PNG", np.array([values] * 6, np.uint8))
    save(folder / "m" / "tumour" / "b.png", np.array([[0, 0, 3]] * 6, np.uint8))
    with_tumour = np.array([expected] * 6) | [0, 0, 2]
    np.testing.assert_array_equal(read_codes(find(folder)[0].mask, ignore=255), with_tumour)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda f: save(f, np.zeros((5, 8), np.uint8)), r"tumour/b\.png is 8x5, .*organ/b\.PNG 8x6; .* one size"),
        (lambda f: save(f, np.zeros((*SIZE, 3), np.uint8)), r"tumour/b\.png: 1 colours; the mask of a class"),
        (lambda f: save(f.with_suffix(".jpg"), plane(0, 2)), r"tumour/b\.jpg: lossy compression"),
        (lambda f: f.write_bytes(b""), r"tumour/b\.png: is empty"),
    ],
)  # fmt: skip
def test_files_that_are_no_masks_of_a_class(
    folder: Path, write: Callable[[Path], object], error: str
) -> None:
    write(folder / "m" / "tumour" / "b.png")
    scanned, errors = scan(find(folder), planes=True)
    assert [each.pair.name for each in scanned] == ["sub/a"]
    assert list(errors) == ["b"]
    with pytest.raises(UserError, match=error):
        raise UserError(errors["b"])


def test_the_scan_notices_each_change_of_a_class(folder: Path) -> None:
    def values() -> list[tuple[int, ...]]:
        return [each.mask.values for each in scan(find(folder), planes=True)[0]]

    assert values() == values() == [(0, 1), (1, 2, 3)]
    save(folder / "m" / "tumour" / "b.png", plane(1, 4))  # another class
    assert values() == [(0, 2, 3), (1, 2, 3)]
    save(folder / "m" / "tumour" / "b.png", plane(1, 2))  # another content
    assert values() == [(0, 3), (1, 2, 3)]
    (folder / "m" / "organ" / "b.PNG").unlink()
    assert values() == [(0, 2), (1, 2, 3)]
    save(folder / "m" / "aorta" / "c.png", plane(1, 2))  # bits move
    assert values() == [(0, 4), (2, 4, 6)]


class Bits(Labels):
    """Labels whose ids are the codes."""

    may_overlap: ClassVar[bool] = True

    def to_ids(self, codes: Codes, path: Path) -> Ids:
        return codes.astype(np.uint8)


def dataset_of(pairs: Pairs, **how: Any) -> SegmentationDataset:
    labels = Bits(tuple(range(8)))
    return SegmentationDataset(pairs, labels, ImageFormat(3), scale=1.0, **how)


def test_samples_and_their_cache(folder: Path, tmp_path: Path) -> None:
    cache = SampleCache(
        tmp_path / "cache", Bits(tuple(range(8))), ImageFormat(3), scale=1.0, resize_masks=False
    )
    for dataset in (dataset_of(find(folder)), dataset_of(find(folder), store=cache)):
        np.testing.assert_array_equal(dataset[0, 1].mask, codes_a())
        np.testing.assert_array_equal(dataset.read_truth(1), codes_a())
    assert len(list((tmp_path / "cache" / "samples").iterdir())) == 1
    save(folder / "m" / "tumour" / "sub" / "a.tif", plane(4, 6, 9))
    np.testing.assert_array_equal(dataset[0, 1].mask, plane(0, 4, 1) | plane(4, 6, 2))


def test_a_list_may_name_them(folder: Path) -> None:
    rows = ["image,mask", "i/sub/a.jpg,m/*/sub/a.png", "i/b.jpg,m/*/c.png"]
    (folder / "list.csv").write_text("\n".join(rows))
    report = Report(collects=True)
    (pair,) = read_list(folder / "list.csv", report)
    assert report.problems == [f"{folder}/m/*/c.png: no folder has such a mask"]
    assert pair.stamps == find(folder)[1].stamps
    assert type(collect([pair])) is type(find(folder))


def test_a_resumed_run_notices_other_masks(folder: Path) -> None:
    def measure() -> list[list[int]]:
        return measure_files(Split(find(folder), Pairs(), "")).tolist()

    before = measure()
    assert before == measure()
    assert min(map(min, before)) >= 0
    save(folder / "m" / "tumour" / "b.png", plane(1, 4))
    after = measure()
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_a_resumed_run_compares_the_bytes_of_the_files(folder: Path) -> None:
    """Not those of a PNG that is made of them, which depend on the version of zlib."""
    found = measure_files(Split(find(folder), Pairs(), "")).tolist()
    files = [
        folder / "m" / each / "sub" / f"a.{end}"
        for each, end in (("organ", "png"), ("tumour", "tif"))
    ]
    assert found[1][1] == zlib.crc32(b"".join(path.read_bytes() for path in files))
    files[1].write_bytes(b"")  # it can't be decoded, but is there
    assert measure_files(Split(find(folder), Pairs(), ""))[1, 1] == zlib.crc32(
        files[0].read_bytes()
    )
