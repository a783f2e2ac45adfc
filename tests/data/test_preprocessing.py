"""Pixels are normalised by numbers of the data set: against the formula and torchvision."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.functional import normalize

from unet_ddp.data.preprocessing import PixelRange, Preprocessing
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.errors import UserError

MEASURED = PixelRange(-50.0, 900.0, (0.2, 0.4), (0.1, 0.25))


def test_photographs_are_normalised_as_torchvision_does(rng: np.random.Generator) -> None:
    images = torch.from_numpy(rng.integers(0, 256, (2, 5, 7, 3), dtype=np.uint8))
    expected = normalize(
        images.permute(0, 3, 1, 2) / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    )
    found = Preprocessing.for_images(3, scale=1.0)(images)
    assert found.dtype == torch.float32 and found.shape == (2, 3, 5, 7)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_the_lowest_value_counts(dtype: Any) -> None:
    """The range is 950: -50 is its beginning, 140 a fifth of it, 900 its end."""
    pixels = Preprocessing.for_data(ImageFormat(2, np.dtype(dtype).name), MEASURED, scale=1.0)
    image = torch.from_numpy(np.array([[-50, 140, 900]], dtype))[..., None].repeat(1, 1, 1, 2)
    before = image.clone()
    found = pixels(image)
    assert found.shape == (1, 2, 1, 3)
    assert found[0, 0, 0].tolist() == pytest.approx([-2, 0, 8], abs=1e-6)
    assert found[0, 1, 0].tolist() == pytest.approx([-1.6, -0.8, 2.4], abs=1e-6)
    assert torch.equal(image, before)


def test_the_network_sees_zero_where_there_is_no_data() -> None:
    pixels = Preprocessing.for_data(ImageFormat(2, "float32", -9.0), MEASURED, scale=0.5)
    assert pixels.fill == (140.0, 330.0)
    assert pixels.format == ImageFormat(2, "float32", -9.0, (140.0, 330.0))
    assert pixels(torch.tensor(pixels.fill).view(1, 1, 1, 2)).abs().max() == 0


def test_a_type_is_computed_in_on_request() -> None:
    images = torch.tensor([0, 64, 192, 255], dtype=torch.uint8).view(1, 2, 2, 1)
    found = Preprocessing.for_images(1, scale=1.0)(images, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert found.flatten().tolist() == pytest.approx([-2, -0.996, 1.012, 2], abs=0.02)
    means = [255 * mean for mean in (0.485, 0.456, 0.406)]
    pixels = torch.tensor(means, dtype=torch.float64).view(1, 1, 1, 3) + 1
    found = Preprocessing.for_images(3, scale=1.0)(pixels, torch.float64)
    stds = [255 * std for std in (0.229, 0.224, 0.225)]
    assert found.flatten().tolist() == pytest.approx([1 / std for std in stds], rel=1e-12)


@pytest.mark.parametrize(("max_value", "dtype"), [(255, "uint8"), (65535, "uint16")])
def test_other_channels_are_centred(max_value: int, dtype: str) -> None:
    pixels = Preprocessing.for_images(4, max_value, scale=0.5)
    assert pixels == Preprocessing(
        4, (0.5,) * 4, (0.25,) * 4, 0.5, dtype, low=0.0, high=float(max_value), nodata=None
    )
    ends = np.array([[[[0] * 4, [max_value] * 4]]], dtype)
    assert pixels(torch.from_numpy(ends.astype(np.int32)))[0, 0, 0].tolist() == [-2, 2]
    usual = Preprocessing.for_data(ImageFormat(4, dtype, 7.0), None, scale=0.5)
    assert usual == Preprocessing(
        4, (0.5,) * 4, (0.25,) * 4, 0.5, dtype, high=float(max_value), nodata=7.0
    )


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_images_without_any_data_keep_their_type(dtype: str) -> None:
    assert Preprocessing.for_data(ImageFormat(1, dtype, -9.0), None, scale=1.0).dtype == dtype


def test_eight_bit_is_usual() -> None:
    plain = {"channels": 1, "mean": [0.0], "std": [1.0], "scale": 1.0}
    found = Preprocessing.from_dict(plain)
    assert (found.dtype, found.low, found.high, found.nodata) == ("uint8", 0.0, 255.0, None)


def test_what_is_measured_is_taken() -> None:
    assert Preprocessing.for_data(ImageFormat(2, "int16", 3.0), MEASURED, scale=0.25) == (
        Preprocessing(2, (0.2, 0.4), (0.1, 0.25), 0.25, "int16", -50.0, 900.0, 3.0)
    )


def test_images_of_one_value_stay_finite() -> None:
    flat = PixelRange(7.0, 7.0, (0.0,), (1.0,))
    pixels = Preprocessing.for_data(ImageFormat(1, "float32"), flat, scale=1.0)
    found = pixels(torch.tensor([7.0, 9.0]).view(1, 1, 2, 1))
    assert found.flatten().tolist() == [0.0, 2.0]


def test_a_checkpoint_gives_it_back() -> None:
    pixels = Preprocessing.for_data(ImageFormat(2, "int16", 3.0), MEASURED, scale=0.25)
    plain = pixels.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert list(plain) == ["channels", "mean", "std", "scale", "dtype", "low", "high", "nodata",
                           "ground_resolution"]  # fmt: skip
    again = Preprocessing.from_dict({**plain, "of a later version": 1})
    assert again == pixels and hash(again) == hash(pixels)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean": (0.5, 0.5)}, "mean: [0.5, 0.5] for 1 channel; expected one number each"),
        ({"std": ()}, "std: [] for 1 channel; expected one number each"),
        ({"std": (0.0,)}, "low: 0.0, high: 255.0, std: [0.0]; expected a range with high above"),
        ({"low": 256.0}, "low: 256.0, high: 255.0, std: [0.25]; expected a range"),
        ({"high": 1e38, "std": (1.5,)}, "whose numbers 32 bits can hold"),
        ({"std": (float("nan"),)}, "whose numbers 32 bits can hold"),
    ],
    ids=str,
)
def test_numbers_by_which_no_pixel_can_be_normalised_are_refused(
    change: dict[str, Any], said: str
) -> None:
    grey = Preprocessing(1, (0.5,), (0.25,), 1.0)
    with pytest.raises(UserError) as refused:
        replace(grey, **change)
    assert said in str(refused.value)
    assert replace(grey, low=255.0).std == (0.25,)  # of one value: its range counts as 1
