"""Files of any format as the data set wants them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import make_set
from tests.reading import read_header, read_image
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source, read_mask
from unet_ddp.data.readers.resize import find_nodata
from unet_ddp.errors import UserError

GREY, FLOAT = ImageFormat(1), ImageFormat(1, "float32")
NAN = float("nan")


def test_a_scaled_pixel_is_the_mean_of_its_area(tmp_path: Path) -> None:
    blocks = np.kron(np.array([[10, 200], [90, 30]], np.uint8), np.ones((8, 8), np.uint8))
    blocks[::2, ::2] += 20  # a pattern that picking single pixels would show
    Image.fromarray(blocks).save(tmp_path / "x.png")
    np.save(tmp_path / "x.npy", blocks)
    for name in ("x.png", "x.npy"):
        read = read_image(tmp_path / name, GREY, scale=0.125)
        assert read[..., 0].tolist() == [[15, 205], [95, 35]]


@pytest.mark.parametrize("name", ["x.png", "x.npy"])
def test_a_mask_is_scaled_about_the_same_centre_as_its_image(tmp_path: Path, name: str) -> None:
    mask = np.zeros((64, 64), np.uint8)
    mask[16:48, 16:48] = 255
    Image.fromarray(mask).save(tmp_path / "x.png")
    np.save(tmp_path / "x.npy", mask)
    small_mask = read_mask(tmp_path / name, scale=1 / 3) > 0
    small_image = read_image(tmp_path / name, GREY, scale=1 / 3)[..., 0] > 127
    assert small_mask.shape == (21, 21) and (small_mask == small_image).all()


@pytest.mark.parametrize("name", ["x.png", "x.npy"])
def test_a_mask_keeps_the_value_at_each_centre(tmp_path: Path, name: str) -> None:
    values = np.arange(20, dtype=np.uint8).reshape(4, 5)
    Image.fromarray(values).save(tmp_path / "x.png")
    np.save(tmp_path / "x.npy", values)
    assert read_mask(tmp_path / name, scale=0.5).tolist() == [[6, 8], [16, 18]]


@pytest.mark.parametrize("bands", [1, 3])
def test_grey_becomes_colour_and_nothing_else(tmp_path: Path, bands: int) -> None:
    values = np.arange(20, dtype=np.int16).reshape(4, 5)
    np.save(tmp_path / "x.npy", values)
    read = read_image(tmp_path / "x.npy", ImageFormat(bands, "int16"))
    assert (read == values[..., None]).all() and read.shape == (4, 5, bands)
    with pytest.raises(UserError, match=r"x\.npy: 1 channel, the network takes 2; convert it"):
        read_image(tmp_path / "x.npy", ImageFormat(2, "int16"))
    with pytest.raises(
        UserError, match=r"x\.npy: int16, the network was trained on 16 bit images; convert it"
    ):
        read_image(tmp_path / "x.npy", ImageFormat(1, "uint16"))
    np.save(tmp_path / "x.npy", np.stack([values, values], axis=-1))
    with pytest.raises(UserError, match="2 channels, the network takes 1"):  # none is alpha
        read_image(tmp_path / "x.npy", ImageFormat(1, "int16"))


@pytest.mark.parametrize(
    ("pixels", "nodata", "expected"),
    [
        (np.array([[[1, 7], [7, 7], [1, 1]]], np.uint8), 7, [[False, True, False]]),
        (np.array([[[1, 7], [7, 7], [1, 1]]], np.int16), 7, [[True, True, False]]),
        (np.array([[[1, NAN], [7, 7], [NAN, NAN]]], np.float32), NAN, [[True, False, True]]),
        (np.array([[[1, NAN], [7, 7], [1, 1]]], np.float32), 7, [[True, True, False]]),
        (np.array([[[1, 7], [7, 7], [1, 1]]], np.float32), -1.7e308, [[False, False, False]]),
        (np.array([[[1, 7], [7, 7], [1, 1]]], np.uint16), -9999, [[False, False, False]]),
    ],
)
@pytest.mark.filterwarnings("error")  # of a value that the type can't hold
def test_pixels_without_data(pixels: np.ndarray, nodata: float, expected: list[list[bool]]) -> None:
    assert find_nodata(pixels, nodata).tolist() == expected


def test_pixels_without_data_are_filled_before_scaling(tmp_path: Path) -> None:
    """A new pixel with a share of them holds no data; the others are what they were."""
    values = np.array([[1, 3, -9, 5, 2, 2], [1, 3, 5, 5, 2, 2]], np.float32)
    np.save(tmp_path / "x.npy", values)
    wanted = ImageFormat(1, "float32", -9.0, (6.0,))
    pixels, mask = Source(tmp_path / "x.npy").image(wanted)
    assert pixels[..., 0].tolist() == [[1, 3, 6, 5, 2, 2], [1, 3, 5, 5, 2, 2]]
    assert mask is not None and np.argwhere(mask).tolist() == [[0, 2]]
    pixels, mask = Source(tmp_path / "x.npy").image(wanted, scale=0.5)
    assert mask is not None and mask.tolist() == [[False, True, False]]
    assert pixels[0, :, 0].tolist() == pytest.approx([2, 5.25, 2])
    pixels, _ = Source(tmp_path / "x.npy").image(ImageFormat(1, "float32", -9.0))
    assert pixels[0, 2, 0] == 0
    pixels, mask = Source(tmp_path / "x.npy").image(ImageFormat(1, "float32", -8.0))
    assert mask is not None and not mask.any() and (pixels[..., 0] == values).all()
    _, mask = Source(tmp_path / "x.npy").image(ImageFormat(1, "float32", -8.0), scale=0.5)
    assert mask is not None and mask.tolist() == [[False] * 3]  # of the scaled image's size
    assert Source(tmp_path / "x.npy").image(FLOAT)[1] is None


def test_nan_and_infinity_must_be_explained(tmp_path: Path) -> None:
    values = np.array([[1, NAN, NAN, 2]], np.float32)
    np.save(tmp_path / "x.npy", values)
    expected = r"x\.npy: nan or infinity in 2 pixels; fix it, or train with --nodata nan to ignore"
    with pytest.raises(UserError, match=expected):
        read_image(tmp_path / "x.npy", FLOAT)
    read = read_image(tmp_path / "x.npy", ImageFormat(1, "float32", NAN, (8.0,)))
    assert read[0, :, 0].tolist() == [1, 8, 8, 2]
    np.save(tmp_path / "x.npy", np.array([[1, np.inf]], np.float32))
    with pytest.raises(UserError, match=r"nan or infinity in 1 pixel;"):
        read_image(tmp_path / "x.npy", ImageFormat(1, "float32", NAN, (8.0,)))


@pytest.mark.parametrize("name", ["x.png", "x.npy"])
def test_a_thumbnail_is_grey_and_the_mean_of_each_area(tmp_path: Path, name: str) -> None:
    blocks = np.kron(np.array([[10, 200], [90, 30]], np.uint8), np.ones((8, 8), np.uint8))
    colours = np.stack([blocks] * 3, axis=-1)
    Image.fromarray(colours).save(tmp_path / "x.png")
    np.save(tmp_path / "x.npy", colours + np.array([3, 0, 0], np.uint8))
    found = Source(tmp_path / name).thumbnail(2)
    assert found.dtype == np.float32
    assert (found - (name == "x.npy")).tolist() == [[10, 200], [90, 30]]


@pytest.mark.parametrize("name", ["x.png", "x.npy", "x.tif"])
def test_every_reader_names_a_missing_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for read in (read_header, read_mask, lambda path: read_image(path, GREY),
                 lambda path: Source(path).thumbnail(8)):  # fmt: skip
        with pytest.raises(UserError, match=rf"{name}: not found"):
            read(path)


def test_a_photo_and_a_set_of_files_need_no_extra(tmp_path: Path) -> None:
    """Nor does the import of the predictor: a reader is imported when a file's suffix asks for it.

    Packs, storage, the cache and the demo set are imported when they are named, and not before.
    """
    make_set(tmp_path, 3)
    Image.fromarray(np.zeros((4, 3, 3), np.uint8)).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", np.zeros((4, 3, 3), np.uint8))
    code = """
import sys
from pathlib import Path
from unet_ddp import Predictor
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
for name in ("a.png", "a.npy"):
    assert Source(Path(sys.argv[1], name)).image(ImageFormat(3))[0].shape == (4, 3, 3)
    print([module for module in sys.modules if module.startswith("unet_ddp.extras.")])
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
folders = (sys.argv[1] + side for side in ("/imgs", "/masks"))
assert len(prepare_data(DataConfig(*folders), parts=DATA_PARTS, seed=0).split.training) == 2
extras = tuple(f"unet_ddp.extras.{each}" for each in ("packs", "cloud", "cache.samples", "demo_set"))
print([module for module in sys.modules if module.startswith(extras)])
"""
    root, argv = Path(__file__).parents[3], [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True)
    loaded = ["unet_ddp.extras.formats", "unet_ddp.extras.formats.npy"]
    assert done.stdout.splitlines() == ["[]", str(loaded), "[]"]
