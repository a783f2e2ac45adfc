"""Errors of readers as one line each, and images turned upright."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, UnidentifiedImageError

from tests.conftest import make_set
from tests.reading import read_header, read_image
from unet_ddp.data.readers import base
from unet_ddp.data.readers.base import (
    Header,
    ImageFormat,
    TooLargeError,
    as_user_error,
    bits_of,
    refuse_bomb,
    upright,
)
from unet_ddp.data.readers.read import Source, find_reader, list_suffixes, read_mask
from unet_ddp.errors import UserError
from unet_ddp.prediction.source import open_image


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("as it is"), "as it is"),
        (FileNotFoundError(2, "No such file"), "x.png: not found"),
        (PermissionError(13, "Permission denied"), "x.png: no permission to read it"),
        (IsADirectoryError(21, "Is a directory"), "x.png: is a folder, not an image; give its images, or rename or remove it"),
        (Image.DecompressionBombError("huge"), "x.png: too large to open safely; cut it into tiles"),
        (UnidentifiedImageError("?"), "x.png: is a text file, not a readable image; replace or remove it"),
        (ValueError("bad\n  header"), "x.png: corrupt or truncated (bad header); replace it"),
        (OSError(), "x.png: corrupt or truncated (OSError); replace it"),
        (MemoryError(), "x.png: not enough memory to read it; use fewer --workers, or cut it into tiles"),
        (RuntimeError("OpenCV: (-4:Insufficient memory) Failed to allocate 9 bytes"),
         "x.png: not enough memory to read it; use fewer --workers, or cut it into tiles"),
        (OSError("out of memory error when reading image file"),
         "x.png: not enough memory to read it; use fewer --workers, or cut it into tiles"),
    ],
)  # fmt: skip
def test_an_error_of_reading_is_one_line(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.png").write_text("?")
    with pytest.raises(UserError) as caught, as_user_error(Path("x.png")):
        raise error
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty (0 bytes); replace or remove it"),
        (b"\n <!DOCTYPE html>", "is a web page, not an image; download it again: a failed download leaves a page"),
        (b"<html>", "is a web page, not an image; download it again: a failed download leaves a page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, not an image; fetch its content with git lfs pull"),
        (b"PK\x03\x04" + bytes(30), "is a ZIP archive, not a readable image; unpack it"),
        (b"text", "is a text file, not a readable image; replace or remove it"),
    ],
)  # fmt: skip
def test_no_image_at_all(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        read_header(path)
    assert str(caught.value) == f"{path}: {reason}"


def test_no_file_and_no_image_but_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.png").mkdir()
    with pytest.raises(UserError, match=r"x\.png: is a folder"):
        read_header(tmp_path / "x.png")
    with pytest.raises(UserError, match=r"y\.png: not found"):
        read_header(tmp_path / "y.png")


@pytest.mark.parametrize("suffix", [*list_suffixes(), ".jpx", ""])
def test_what_is_no_file_is_not_opened(tmp_path: Path, suffix: str) -> None:
    """To open a pipe waits for somebody who writes to it; a device may have no end."""
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / f"socket{suffix}"))
    for name in ("pipe", "zero", "socket"):
        path = tmp_path / f"{name}{suffix}"
        for read in (read_header, read_mask, lambda p: read_image(p, ImageFormat(3)),
                     lambda p: Source(p).thumbnail(8), lambda p: open_image(Source(p), ImageFormat(3), 1)):  # fmt: skip
            with pytest.raises(UserError) as caught:
                read(path)
            assert (
                str(caught.value) == f"{path}: is a pipe, socket or device, not a file; remove it"
            )


def test_no_permission_is_said() -> None:
    """Read as another user where the tests run as root, whom no permission stops."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "x.png"
        Image.new("RGB", (8, 8)).save(path)
        path.chmod(0)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(UserError, match=r"x\.png: no permission to read it"):
                read_header(path)
        finally:
            os.seteuid(before)
            path.chmod(0o644)


def test_threads_leave_the_warning_filters_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each image is one that Pillow warns of as large."""
    folder = make_set(tmp_path, 8) / "imgs"
    warnings.filterwarnings("ignore", module=r"PIL\.")  # as at import
    before = list(warnings.filters)
    first, second = as_user_error(folder), as_user_error(folder)  # as two threads meet in it
    for enter in (first.__enter__, second.__enter__):
        enter()
    for leave in (first.__exit__, second.__exit__):
        leave(None, None, None)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # they have 768; an error from 1000 on
    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(lambda path: read_image(path, ImageFormat(3)), folder.iterdir()))
    assert len(images) == 8 and list(warnings.filters) == before


def test_importing_the_readers_quiets_the_libraries(tmp_path: Path) -> None:
    """Their messages still reach a program that asks for them."""
    find_reader(tmp_path / "a.tif")
    for library in ("PIL", "tifffile", "rasterio"):
        logger = logging.getLogger(library)
        assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
        assert logger.propagate and not logger.disabled


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_is_what_pillow_makes_of_it(orientation: int) -> None:
    pixels = np.arange(30, dtype=np.uint8).reshape(5, 6)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    assert (upright(pixels, orientation) == expected).all()
    assert (upright(pixels[..., None], orientation)[..., 0] == expected).all()


@pytest.mark.parametrize(
    ("image_format", "expected"),
    [(ImageFormat(3), 4 * 35), (ImageFormat(1, "uint16"), 3 * 35), (ImageFormat(5, "float32"), 21 * 35)],
)  # fmt: skip
def test_bytes_of_an_image_and_its_mask(image_format: ImageFormat, expected: int) -> None:
    assert image_format.bytes_with_mask(5, 7) == expected


def test_formats_as_people_name_them() -> None:
    assert list(map(bits_of, ("uint8", "uint16", "int16"))) == ["8 bit", "16 bit", "int16"]
    assert Header(4, 3, 5, "int16").size == (3, 4)
    ours = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".npy"}
    assert ours == set(list_suffixes())


def test_an_image_is_a_bomb_if_both_its_size_and_its_compression_are_extreme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels of 600 bytes in a file of 6."""
    monkeypatch.setattr(base, "MOST_BYTES", 1199)
    path = tmp_path / "a.png"
    path.write_bytes(b"x" * 6)
    for ratio, copies, is_bomb in ((99, 2, True), (100, 2, False), (99, 1, False)):
        monkeypatch.setattr(base, "MOST_RATIO", ratio)
        refused = pytest.raises(TooLargeError, match="20x10 pixels of 3 bytes")
        with refused if is_bomb else nullcontext():
            refuse_bomb(path, 20, 10, file=path, pixel_bytes=3, copies=copies)
