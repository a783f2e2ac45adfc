"""Pictures: which pixel has which colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unet_ddp.data.drawing import TINT, draw_mask, save_picture, to_rgb
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID

TWO, THREE = Labels((0, 255)), Labels((0xFF0000, 0x00FF00, 0x0000FF), rgb=True)
WHITE = [255, 255, 255]


def test_the_foreground_of_two_is_tinted() -> None:
    image = np.full((1, 3, 3), 100, np.uint8)
    drawn = draw_mask(image, np.array([[0, 1, IGNORE_ID]], np.uint8), TWO)
    assert drawn.dtype == torch.uint8 and drawn.shape == (3, 1, 3)
    tinted = [(100 + colour) // 2 for colour in TINT]
    assert drawn[:, 0].T.tolist() == [[100] * 3, tinted, [100] * 3]


def test_each_of_several_classes_has_its_colour() -> None:
    image = np.full((1, 4, 1), 100, np.uint8)
    drawn = draw_mask(image, np.array([[0, 1, 2, IGNORE_ID]], np.uint8), THREE)
    assert drawn[:, 0].T.tolist() == [[177, 50, 50], [50, 177, 50], [50, 50, 177], [100] * 3]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32])
def test_any_image_becomes_rgb(dtype: type) -> None:
    bands = np.array([[[10, 30, 50, 70, 90], [20, 40, 60, 80, 110]]]).astype(dtype)
    five, two, one = (to_rgb(bands[..., :count]) for count in (5, 2, 1))
    plain = dtype == np.uint8
    stretched = [[10, 30, 50], [20, 40, 60]] if plain else [[0, 102, 204], [51, 153, 255]]
    assert five.dtype == torch.uint8 and five.is_contiguous()
    assert five[:, 0].T.tolist() == stretched
    assert one[:, 0].T.tolist() == ([[10] * 3, [20] * 3] if plain else [[0] * 3, [255] * 3])
    assert two[:, 0].T.tolist() == ([[10] * 3, [20] * 3] if plain else [[0] * 3, [85] * 3])


def test_an_image_of_one_value_is_black() -> None:
    assert to_rgb(np.full((2, 2, 1), 7, np.int16)).unique().tolist() == [0]


def load(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG" and image.mode == "RGB"
        return np.asarray(image)


def test_a_picture_is_written_as_it_is(tmp_path: Path, rng: np.random.Generator) -> None:
    picture = torch.from_numpy(rng.integers(0, 256, (3, 4, 6), dtype=np.uint8))
    save_picture(picture, tmp_path / "x")
    assert (load(tmp_path / "x") == picture.permute(1, 2, 0).numpy()).all()
