"""One picture, one mask: the same pixels are the same to the network, whatever carries them.

Each carrier writes a picture to a file, or is the picture in memory. At each scale, the network must
get the pixels that it gets of the plain array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.maps import write_map
from unet_ddp.data.readers import pillow
from unet_ddp.data.readers.base import ImageFormat, upright
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.data.readers.resize import resize_nearest, scaled_size
from unet_ddp.prediction import source as module
from unet_ddp.prediction.source import SourceImage, open_array, open_image

SCALES = (1.0, 0.75, 0.5, 1 / 3, 0.3, 0.25, 0.125)
SIZES = ((48, 64), (47, 61))  # multiples of what scales divide by, and not
_STORED_FOR = {6: 8, 8: 6}  # the turn that undoes a turn; others undo themselves

Array = NDArray[Any]
Write = Callable[[Path], Any]


def draw(size: tuple[int, int], channels: int, dtype: str) -> Array:
    """Return a picture with edges and noise, in which every way to reduce it shows."""
    rng = np.random.default_rng(size[1])
    coarse = rng.random((7, 9, channels), np.float32)
    smooth = cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_CUBIC).reshape(*size, channels)
    values = (0.7 * smooth + 0.3 * rng.random(smooth.shape, np.float32)).clip(0, 1)
    if dtype == "float32":
        return values
    limits = np.iinfo(dtype)
    return (limits.min + values * (int(limits.max) - int(limits.min))).astype(dtype)


def arrays(picture: Array) -> Iterator[tuple[str, Write]]:
    """Yield files that hold any array: NPY, and the TIFFs of programs of science and of maps."""
    flat = picture[..., 0] if picture.shape[2] == 1 else picture
    photometric = "rgb" if picture.shape[2] == 3 else "minisblack"
    together: Any = {} if flat.ndim == 2 else {"planarconfig": "contig"}
    yield "a.npy", lambda path: np.save(path, picture)
    yield "columns.npy", lambda path: np.save(path, np.asfortranarray(picture))
    for name, how in {
        "plain": {}, "packed": {"compression": "zlib"}, "tiled": {"tile": (16, 16)},
        "big": {"bigtiff": True}, "motorola": {"byteorder": ">"},
    }.items():  # fmt: skip
        write: Any = partial(
            tifffile.imwrite, photometric=photometric, data=flat, **together, **how
        )
        yield f"{name}.tif", write
    yield "map.tif", lambda path: write_map(path, picture)
    if picture.shape[2] > 1:
        bands = np.moveaxis(picture, 2, 0)
        yield "bands.npy", lambda path: np.save(path, bands)
        how = {"photometric": photometric, "planarconfig": "separate"}
        yield "planes.tif", lambda path: tifffile.imwrite(path, bands, **how)


def pictures(picture: Array) -> Iterator[tuple[str, Write]]:
    """Yield the files of photographs and screens, with alpha and turned."""
    flat = picture[..., 0] if picture.shape[2] == 1 else picture
    order = flat if flat.ndim == 2 else flat[..., ::-1]
    yield "opencv.png", lambda path: cv2.imwrite(str(path), order)
    if picture.dtype != np.uint8:
        return
    colour = np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture
    clear = np.dstack([colour, picture[..., :1]])
    for name in ("a.png", "a.bmp", "a.tif", "a.gif"):
        if name != "a.gif" or flat.ndim == 2:
            yield name, lambda path: Image.fromarray(flat).save(path)
    for name in ("a.webp", "alpha.webp", "alpha.png", "alpha.tif"):
        pixels: Array = clear if "alpha" in name else colour
        how = {"lossless": True, "exact": True} if "webp" in name else {}
        yield name, lambda path, p=pixels, how=how: Image.fromarray(p).save(path, **how)
    for turn in range(2, 9):
        stored = np.ascontiguousarray(upright(flat, _STORED_FOR.get(turn, turn)))
        exif = Image.Exif()
        exif[0x0112] = turn
        for suffix in ("png", "webp", "tif"):
            if suffix != "webp" or flat.ndim == 3:
                how = {"lossless": True} if suffix == "webp" else {}
                write = partial(Image.fromarray(stored).save, exif=exif, **how)
                yield f"turned{turn}.{suffix}", write


def pixels_at(image: SourceImage) -> Array:
    return image.read(0, image.input_size[0])


def compare(picture: Any, wanted: ImageFormat, path: Path) -> None:
    """Assert that a file gives the network what the array gives, read whole and by rows."""
    for scale in SCALES:
        with Source(path) as source:
            found = pixels_at(open_image(source, wanted, scale))
        expected = pixels_at(open_array(picture, wanted, scale))
        assert np.array_equal(found, expected), f"{path.name} at {scale:g}"


@pytest.mark.parametrize("streamed", [1, 1 << 24], ids=["rows", "whole"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(1, "uint8"), (3, "uint8"), (5, "uint8"), (1, "uint16"), (3, "uint16"), (2, "int16"), (4, "float32")],
)  # fmt: skip
def test_files_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    channels: int, dtype: str, size: tuple[int, int], streamed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "STREAMED", streamed)
    picture = draw(size, channels, dtype)
    carriers = dict(arrays(picture))
    if channels in (1, 3) and dtype in ("uint8", "uint16"):
        carriers |= dict(pictures(picture))
    if streamed == 1:
        carriers = {name: write for name, write in carriers.items() if name.endswith(".tif")}
    for name, write in carriers.items():
        write(tmp_path / name)
        compare(picture, ImageFormat(channels, dtype), tmp_path / name)
        if channels == 1:  # to a network of colour images
            compare(picture, ImageFormat(3, dtype), tmp_path / name)


@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize("how", [
    {"format": "JPEG", "quality": 90}, {"format": "JPEG", "quality": 40, "subsampling": 0},
    {"format": "JPEG", "quality": 75, "subsampling": 1, "progressive": True},
    {"format": "WEBP", "quality": 60},
], ids=str)  # fmt: skip
def test_files_with_loss_are_their_decoded_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], turn: int
) -> None:
    """No decoder reduces them: JPEG's does it in another way, and the mask would differ by a percent.

    OpenCV decodes them in less time, to Pillow's pixels.
    """
    exif = Image.Exif()
    exif[0x0112] = turn
    path = tmp_path / ("a.jpg" if how["format"] == "JPEG" else "a.webp")
    for size in ((203, 301), (128, 96), (9, 7)):
        Image.fromarray(draw(size, 3, "uint8")).save(path, exif=exif, **how)
        with Image.open(path) as stored:
            decoded = upright(np.asarray(stored.convert("RGB")), turn)
            compare(stored, ImageFormat(3), path)
        with monkeypatch.context() as patch:
            patch.setattr(pillow, "decode", None)
            compare(decoded, ImageFormat(3), path)


@pytest.mark.parametrize(
    ("mode", "wanted"), [("L", 1), ("L", 3), ("RGB", 1), ("RGB", 4), ("CMYK", 3)]
)
def test_jpegs_that_are_converted(tmp_path: Path, mode: str, wanted: int) -> None:
    picture = Image.fromarray(draw((120, 90), 3, "uint8")).convert(mode)
    picture.save(tmp_path / "a.jpg", quality=80)
    with Image.open(tmp_path / "a.jpg") as stored:
        converted = np.asarray(stored.convert({1: "L", 3: "RGB", 4: "RGBA"}[wanted]))
    compare(converted, ImageFormat(wanted), tmp_path / "a.jpg")


@pytest.mark.parametrize("size", [(48, 64), (47, 61), (7, 5), (120, 90)])
def test_masks_are_the_same_in_every_format(tmp_path: Path, size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    for name, write in (*arrays(values[..., None]), *pictures(values[..., None])):
        if any(word in name for word in ("alpha", "webp", "gif")):
            continue  # colours, and values that the writer gives new numbers
        write(tmp_path / name)
        for scale in (*SCALES, 0.9, 0.6, 0.1):
            expected = resize_nearest(values, scaled_size(*size, scale))
            found = read_mask(tmp_path / name, scale=scale)
            assert np.array_equal(found, expected), f"{name} at {scale:g}"


def test_black_and_white_is_the_same_in_every_carrier(tmp_path: Path) -> None:
    """Issue: the pixels of a bool array were 0 and 1, almost black; those of its PNG are 0 and 255."""
    white = np.random.default_rng(0).random((20, 30)) > 0.5
    expected = np.repeat(white[..., None] * np.uint8(255), 3, axis=2)
    wanted, picture = ImageFormat(3), Image.fromarray(white)
    assert picture.mode == "1"
    for name in ("a.png", "a.tif", "a.bmp"):
        picture.save(tmp_path / name)
    np.save(tmp_path / "a.npy", white)
    files = [Source(tmp_path / f"a.{suffix}") for suffix in ("png", "tif", "bmp", "npy")]
    opened = [open_image(file, wanted, 1.0) for file in files]
    opened += [open_array(each, wanted, 1.0) for each in (picture, white, torch.from_numpy(white))]  # type: ignore[arg-type]
    for image in opened:
        assert np.array_equal(image.read(0, 20), expected)
    assert read_mask(tmp_path / "a.npy").tolist() == white.tolist()  # a mask has values
