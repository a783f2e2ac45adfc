"""Readers of images and masks against other libraries, over files of all kinds that they write."""

from __future__ import annotations

import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile

from tests.reading import read_header, read_image
from tests.search.corpus import MASKS, WRITERS, Array, File, draw_ids
from unet_ddp.checks.check import check_dataset
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.matching import Report
from unet_ddp.data.readers.base import DTYPES, ImageFormat, storage_dtype
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError

rasterio = pytest.importorskip("rasterio", reason="the extra geo is not installed")

# What the program ignores too: Pillow finds no EXIF in a BigTIFF that has none.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
_FILES = {"by_pillow": 70, "by_tifffile": 70, "by_gdal": 50}  # in the fast lane; of others 10

# -- what others read ------------------------------------------------------------------------


def _read_by_opencv(path: Path) -> Array:
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    flags = cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.fromfile(path, np.uint8), flags)
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(pixels.shape[2] if pixels.ndim == 3 else 1)
    return pixels if order is None else pixels[..., order]


def _read_by_gdal(path: Path) -> Array:
    with rasterio.open(path) as file:
        bands = np.moveaxis(file.read(), 0, -1)
        if file.colorinterp[0].name == "palette":
            table = np.array([file.colormap(1)[k][:3] for k in range(len(file.colormap(1)))])
            return table[bands[..., 0]]
        return bands


OTHERS: dict[str, Callable[[Path], Array]] = {
    "tifffile": tifffile.imread,
    "OpenCV": _read_by_opencv,
    "GDAL": _read_by_gdal,
    "NumPy": np.load,
}


def others_agree(file: File) -> dict[str, bool]:
    """Return for each library that can read a file if it finds in it what was written."""
    agree = {}
    for name, read in OTHERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pixels = np.atleast_3d(np.asarray(read(file.path)))
        except Exception:  # each knows some formats only
            continue
        found = [pixels, np.moveaxis(pixels, 0, -1)]  # tifffile gives planes as they lie
        agree[name] = any(is_near(p, q, file) for p in found for q in (file.stored, file.pixels))
    return agree


def is_near(found: Array, expected: Array, file: File) -> bool:
    """Return whether pixels are equal, or near in a lossy file; grey may come as colour."""
    if expected.shape[2] == 1 and found.shape[2] == 3:
        expected = np.repeat(expected, 3, axis=2)
    if found.shape != expected.shape:
        return False
    with np.errstate(invalid="ignore"):  # what others make up of bytes that they do not know
        found, expected = found.astype(np.float64), expected.astype(np.float64)
        if file.most and found.max() > file.most:  # bits are stretched to a byte
            found = found * (file.most / 255)
        return bool(np.abs(found - expected).max() <= file.tolerance)


# -- what ours read --------------------------------------------------------------------------


def find_faults(file: File) -> Iterator[str]:
    """Yield what is wrong with what our readers give for a file."""
    pixels, bands = file.pixels, file.pixels.shape[2] - file.alpha
    dtype = storage_dtype(pixels.dtype)
    try:
        header = read_header(file.path)
    except UserError as error:
        yield f"header: {error}"
        return
    if header.palette:
        bands = 3
    found = (*header.size, header.channels, header.dtype, header.has_alpha)
    if found != (*pixels.shape[:2], bands, dtype, file.alpha):
        yield f"header: {header}"
    if header.is_lossy != bool(file.tolerance):
        yield f"header: lossy is {header.is_lossy}"
    for wanted in (bands, bands + 1) if file.alpha else (bands,):
        try:
            image = read_image(file.path, ImageFormat(wanted, dtype))
            if not is_near(image, pixels[..., :wanted].astype(dtype), file):
                yield f"image of {wanted} bands: other pixels"
        except UserError as error:
            if dtype in DTYPES or "pixels of type" not in str(error):
                yield f"image of {wanted} bands: {error}"
    yield from find_mask_faults(file, header.palette)


def find_mask_faults(file: File, palette: tuple[tuple[int, int, int], ...] | None) -> Iterator[str]:
    """Yield what is wrong with the file as a mask: its values, its colours, or a refusal that says why."""
    bands = file.pixels.shape[2] - file.alpha
    pixels = file.pixels[..., :bands].astype(np.float64)
    limits = (0, 255) if bands == 3 else (-(2**31), 2**31 - 1)
    refusal = ""
    if bands not in (1, 3):
        refusal = f"{bands} bands; a mask has one, or three of colour"
    elif (pixels != np.round(pixels)).any():
        refusal = "mask values are not whole numbers"
    elif pixels.min() < limits[0] or pixels.max() > limits[1]:
        refusal = "save the mask with 8 bit, or in grey" if bands == 3 else "at most 2147483647"
        refusal = "at most 2147483647" if pixels.max() > 2**31 else refusal
    try:
        mask = read_mask(file.path)
    except UserError as error:
        if not refusal or refusal not in str(error):
            yield f"mask: {error}"
        return
    if refusal:
        yield f"mask: read, not refused ({refusal})"
    elif palette is not None:
        is_same = is_near(np.array(palette)[mask], pixels, file)
        if not is_same or (
            file.indices is not None and file.path.suffix != ".gif" and (mask != file.indices).any()
        ):
            yield "mask: other indices"
    elif not is_near(
        np.stack([mask >> 16, mask >> 8 & 255, mask & 255] if bands == 3 else [mask], axis=-1),
        pixels,
        file,
    ):
        yield "mask: other values"


def check_file(file: File) -> list[str]:
    """Return what is wrong with a file, each with how the file was written."""
    agree = others_agree(file)
    lines = list(find_faults(file))
    if not any(agree.values()):
        lines.append("no other library finds what was written")
    return [f"{file.about}: {line}; others: {agree}" for line in lines]


@pytest.mark.parametrize("write", WRITERS)
def test_files_of_all_kinds_are_read_as_they_were_written(
    write: Callable[[np.random.Generator, Path], File], tmp_path: Path
) -> None:
    """The same files each time, in every kind that a fault was once found in."""
    draw = np.random.default_rng(1)
    count = _FILES.get(write.__name__, 10)
    findings = [line for _ in range(count) for line in check_file(write(draw, tmp_path))]
    assert not findings, "\n".join(findings)


# -- classes of masks ------------------------------------------------------------------------


def find_class_faults(
    how: str, classes: int, draw: np.random.Generator, folder: Path
) -> str | None:
    """Return what is wrong with the classes of a data set whose masks are written in one way."""
    masks = {}
    for side in ("i", "m"):
        (folder / side).mkdir(exist_ok=True)
    for name in "abc":
        ids = draw_ids(draw, classes)
        masks[folder / "m" / f"{name}{Path(how).suffix}"] = ids
        cv2.imwrite(str(folder / "i" / f"{name}.png"), draw.integers(0, 256, ids.shape, np.uint8))
    for path, ids in masks.items():
        MASKS[how](ids, str(path), classes)
    config = DataConfig(images=str(folder / "i"), masks=str(folder / "m"), validation=30)
    report = Report(collects=True)
    data = check_dataset(config, report, parts=DATA_PARTS, seed=0)
    if report.problems:
        return None
    assert data is not None and data.labels is not None
    if any("soft edges" in line for line in report.warnings):
        return None
    found = np.concatenate([data.labels.to_ids(read_mask(path), path).ravel() for path in masks])
    true = np.concatenate([ids.ravel() for ids in masks.values()])
    pairs = set(zip(found.tolist(), true.tolist(), strict=True))
    if len(pairs) != classes or data.labels.num_classes != classes:
        return f"{how}: {data.labels.num_classes} classes of {classes}; {report.warnings}"
    return None


@pytest.mark.parametrize("classes", [2, 4])
def test_masks_have_their_classes_or_are_refused(classes: int, tmp_path: Path) -> None:
    """However they are written; a warning of soft edges will do."""
    draw = np.random.default_rng(classes)
    found = []
    for k, how in enumerate(MASKS):
        (tmp_path / str(k)).mkdir()
        found.append(find_class_faults(how, classes, draw, tmp_path / str(k)))
    assert not [line for line in found if line], "\n".join(filter(None, found))


# -- search ----------------------------------------------------------------------------------


def search_readers(deadline: float, seed: int) -> tuple[int, list[str]]:
    """Read random files until the deadline, of `time.monotonic`: how many, and what was found wrong.

    One in twenty is a data set, whose masks must have their classes.
    """
    draw, findings = np.random.default_rng(seed), []
    for count in itertools.count():
        if time.monotonic() >= deadline:
            return count, findings
        with tempfile.TemporaryDirectory() as folder:
            if count % 20 == 19:
                how = list(MASKS)[int(draw.integers(len(MASKS)))]
                line = find_class_faults(how, int(draw.integers(2, 6)), draw, Path(folder))
                findings += [line] if line else []
            else:
                findings += check_file(WRITERS[count % len(WRITERS)](draw, Path(folder)))
    raise AssertionError


@pytest.mark.thorough
def test_more_files_are_read_as_they_were_written() -> None:
    count, findings = search_readers(time.monotonic() + 10, seed=0)
    assert not findings, "\n".join(findings)
    assert count > 20
