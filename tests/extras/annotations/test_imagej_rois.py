"""ROIs of ImageJ become masks: by the pixels that ImageJ's own corners enclose."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.extras.annotations.command import main
from unet_ddp.extras.annotations.imagej_rois import list_rois, open_rois

roifile = pytest.importorskip("roifile", reason="the extra imagej is not installed")

SQUARE = [[2, 1], [6, 1], [6, 4], [2, 4]]


def outline(points: Sequence[Sequence[float]], **more: Any) -> bytes:
    roi = roifile.ImagejRoi.frompoints(np.array(points, np.float32))
    for name, value in more.items():
        setattr(roi, name, value)
    return bytes(roi.tobytes())


def shape(kind: str, left: int, top: int, right: int, bottom: int) -> bytes:
    roi = roifile.ImagejRoi()
    roi.roitype = roifile.ROI_TYPE[kind]
    roi.left, roi.top, roi.right, roi.bottom = left, top, right, bottom
    return bytes(roi.tobytes())


def write_set(path: Path, *rois: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for number, roi in enumerate(rois):
            archive.writestr(f"{number:04}-0001.roi", roi)
    return path


def masks_of(path: Path, size: tuple[int, int] = (12, 16)) -> list[np.ndarray]:
    """The pixels of each object of a file's one image."""
    (image,) = open_rois(list_rois(path)).read()
    found = []
    for region in image.regions:
        patch, mask = region.draw(size), np.zeros(size, bool)
        height, width = patch.pixels.shape
        mask[patch.top : patch.top + height, patch.left : patch.left + width] = patch.pixels
        found.append(mask)
    return found


def filled(top: int, left: int, bottom: int, right: int) -> np.ndarray:
    mask = np.zeros((12, 16), bool)
    mask[top:bottom, left:right] = True
    return mask


@pytest.mark.parametrize("kind", ["POLYGON", "FREEHAND", "TRACED"])
def test_outlines_enclose_their_pixels(tmp_path: Path, kind: str) -> None:
    path = write_set(tmp_path / "a.zip", outline(SQUARE, roitype=roifile.ROI_TYPE[kind]))
    np.testing.assert_array_equal(masks_of(path), [filled(1, 2, 4, 6)])


def test_rectangles_and_ovals(tmp_path: Path) -> None:
    path = write_set(tmp_path / "a.zip", shape("RECT", 3, 2, 9, 8), shape("OVAL", 2, 1, 14, 11))
    square, oval = masks_of(path)
    np.testing.assert_array_equal(square, filled(2, 3, 8, 9))
    rows, columns = np.mgrid[:12, :16] + 0.5
    inside = ((columns - 8) / 6) ** 2 + ((rows - 6) / 5) ** 2 < 1
    assert (oval != inside).sum() <= 8  # a polygon of its corners


def test_a_composite_has_parts_and_holes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole, hole = SQUARE, [[3, 2], [5, 2], [5, 3], [3, 3]]
    other = [[10, 5], [12, 5], [12, 9], [10, 9]]
    parts = [np.array(each, float) for each in (whole, hole, other)]
    monkeypatch.setattr(roifile.ImagejRoi, "coordinates", lambda *_, **__: parts)
    expected = filled(1, 2, 4, 6) ^ filled(2, 3, 3, 5) ^ filled(5, 10, 9, 12)
    path = write_set(tmp_path / "a.zip", outline(SQUARE))
    np.testing.assert_array_equal(masks_of(path), [expected])


def test_lines_and_points_are_left_out(tmp_path: Path) -> None:
    kinds = ("POINT", "POLYLINE", "FREELINE", "ANGLE")
    rois = [outline(SQUARE, roitype=roifile.ROI_TYPE[kind]) for kind in kinds]
    (image,) = open_rois([write_set(tmp_path / "a.zip", *rois)]).read()
    assert (image.skipped, image.regions) == (4, [])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a_RoiSet.zip", "a"), ("RoiSet_a.zip", "a"), ("a-rois.zip", "a"), ("a.zip", "a"),
        ("plate 4_field09_RoiSet.zip", "plate 4_field09"), ("heroi.zip", "heroi"), ("a.tif_RoiSet.zip", "a.tif"),
    ],
)  # fmt: skip
def test_a_file_is_named_after_its_image(tmp_path: Path, file: str, name: str) -> None:
    (image,) = open_rois([write_set(tmp_path / file, outline(SQUARE))]).read()
    assert Path(image.name).name == name


def test_a_folder_of_sets_is_imported_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imgs").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (16, 12)).save(tmp_path / "imgs" / f"{name}.png")
    write_set(tmp_path / "rois" / "a_RoiSet.zip", outline(SQUARE), shape("RECT", 8, 2, 12, 9))
    (tmp_path / "rois" / "b.roi").write_bytes(shape("RECT", 0, 0, 5, 5))
    argv = ["rois", "--images", "imgs", "-o", "masks"]
    assert main([*argv, "--instances"]) == 0
    assert "2 masks of 3 objects" in capsys.readouterr().out
    numbers = read_mask(tmp_path / "masks" / "a.png")
    np.testing.assert_array_equal(numbers > 0, filled(1, 2, 4, 6) | filled(2, 8, 9, 12))
    assert {*np.unique(numbers)} == {0, 1, 2}


def test_what_a_mac_adds_to_an_archive_is_no_roi(tmp_path: Path) -> None:
    path = write_set(tmp_path / "a.zip", outline(SQUARE))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._0000-0001.roi", b"\0\5\x16\7")
        archive.writestr("set/._0000-0001.roi", b"\0\5\x16\7")
    assert len(masks_of(path)) == 1


def test_groups_are_classes(tmp_path: Path) -> None:
    path = write_set(tmp_path / "a.zip", outline(SQUARE, group=3), outline(SQUARE))
    (image,) = open_rois([path]).read()
    assert [region.label for region in image.regions] == ["group 3", "object"]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.zip", b"no zip", "no ZIP file of ROIs"),
        ("a.roi", b"Iout" + b"\xff" * 9, "damaged, or no ROI of ImageJ; save it again"),
        ("a.roi", b"", "damaged, or no ROI"),
    ],
)
def test_another_file_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=said):
        list(open_rois([tmp_path / name]).read())


def test_a_zip_of_other_files_is_named_and_not_looked_for_in_a_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.png", b"")
    assert list_rois(tmp_path) == []
    with pytest.raises(UserError, match="contains no ROIs; save them in Fiji's ROI Manager"):
        list(open_rois(list_rois(tmp_path / "a.zip")).read())
