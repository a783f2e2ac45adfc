"""Windows: where they are, their weights, and the blended whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.prediction.models import CPU, lively_network, load, make_predictor, noise
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.tiling import Tiling, Window, blend


def windows(tiling: Tiling, size: tuple[int, int]) -> tuple[list[Window], list[Window]]:
    """The windows along both sides of an image."""
    return tiling.along(size[0]), tiling.along(size[1])


def spans(tiling: Tiling, length: int) -> list[tuple[int, int]]:
    return [(window.start, window.end) for window in tiling.along(length)]


def test_windows_start_at_multiples_of_the_stride() -> None:
    assert spans(Tiling(64, 0.5, 16), 128) == [(0, 64), (32, 96), (64, 128)]
    assert spans(Tiling(64, 0.0, 16), 100) == [(0, 64), (48, 100)]
    assert spans(Tiling(64, 0.5, 16), 64) == spans(Tiling(64, 0, 16), 64) == [(0, 64)]
    assert spans(Tiling(64, 0.5, 16), 65) == [(0, 64), (16, 65)]
    assert spans(Tiling(64, 0.5, 16), 7) == [(0, 7)]
    assert (Tiling(70, 0.3, 16).window, Tiling(70, 0.3, 16).step) == (64, 32)  # 0.7 * 64 = 44.8
    assert Tiling(64, 0.25, 16).step == 48
    assert Tiling(64, 0.99, 16).step == 16


def test_weights_are_a_cosine_ramp_in_the_middle_eighth_of_an_overlap() -> None:
    first, second, third = (w.weight for w in Tiling(64, 0.5, 16).along(128))
    ramp = [(1 - math.cos(math.pi * x)) / 2 for x in (0.125, 0.375, 0.625, 0.875)]
    assert np.allclose(first, [1] * 46 + ramp[::-1] + [0] * 14, atol=1e-6)
    assert np.allclose(second, [0] * 14 + ramp + [1] * 28 + ramp[::-1] + [0] * 14, atol=1e-6)
    assert np.allclose(third, [0] * 14 + ramp + [1] * 46, atol=1e-6)
    assert first.dtype == np.float32


@pytest.mark.parametrize("length", [1, 16, 65, 80, 333])
@pytest.mark.parametrize(("side", "overlap"), [(16, 0.0), (64, 0.25), (64, 0.99), (70, 0.4)])
def test_weights_add_up_to_one_everywhere(length: int, side: int, overlap: float) -> None:
    total = np.zeros(length)
    for window in Tiling(side, overlap, 16).along(length):
        total[window.start : window.end] += window.weight
    assert np.allclose(total, 1, atol=1e-6)


def test_a_window_may_be_as_small_as_the_stride() -> None:
    assert Tiling(16, 0, 16).step == 16


def test_blending_puts_windows_where_they_belong_and_holds_one_row_of_them() -> None:
    image = noise(20, 36)
    read: list[tuple[int, int]] = []

    def rows(top: int, bottom: int) -> Any:
        read.append((top, bottom))
        return image[top:bottom]

    def first_channel(windows: Any) -> Any:
        return [window[None, ..., 0].astype(np.float32) for window in windows]

    bands = []
    for top, band in blend(rows, first_channel, *windows(Tiling(16, 0, 16), (20, 36))):
        bands.append((top, band.shape, len(read)))
        assert np.array_equal(band[0], image[top : top + band.shape[1], :, 0])
    assert bands == [(0, (1, 16, 36), 2), (16, (1, 4, 36), 2)]
    assert read == [(0, 16), (16, 20)]
    overlapping = list(blend(rows, first_channel, *windows(Tiling(16, 0.5, 4), (20, 36))))
    whole = np.concatenate([band for _, band in overlapping], axis=1)
    assert np.allclose(whole[0], image[..., 0], atol=1e-4)


def test_windows_that_disagree_meet_in_a_ramp() -> None:
    numbers = iter(range(100))

    def constant(windows: Any) -> Any:
        return [np.full((1, *window.shape[:2]), next(numbers), np.float32) for window in windows]

    image = noise(64, 400)
    ((_, band),) = blend(
        lambda a, b: image[a:b], constant, *windows(Tiling(128, 0.5, 16), (64, 400))
    )
    row = band[0, 0]
    assert row[0] == 0 and row[-1] == 5
    assert (np.diff(row) >= 0).all() and np.diff(row).max() < 0.25


def test_windows_of_one_size_are_seen_at_once() -> None:
    seen: list[list[int]] = []

    def first_channel(windows: Any) -> Any:
        seen.append([window.shape[1] for window in windows])
        return np.stack(windows)[:, None, ..., 0].astype(np.float32)

    image, tiling = noise(16, 75), Tiling(16, 0, 16)
    bands = blend(lambda a, b: image[a:b], first_channel, *windows(tiling, (16, 75)), at_once=3)
    ((_, band),) = bands
    assert np.array_equal(band[0], image[..., 0])
    assert seen == [[16, 16, 16], [16], [11]]


def blended(predictor: Predictor, image: np.ndarray, tiling: Tiling) -> np.ndarray:
    bands = blend(
        lambda a, b: image[a:b],
        predictor.scores,
        *windows(tiling, (image.shape[0], image.shape[1])),
    )
    return np.concatenate([band for _, band in bands], axis=1)


def test_windows_give_the_whole_images_logits() -> None:
    """The classic U-Net sees 100 pixels far: less than the share of an overlap without weight."""
    predictor, image = make_predictor(), noise(270, 743)
    whole = predictor.scores([image])[0]
    assert np.abs(blended(predictor, image, Tiling(512, 0.5, 16)) - whole).max() < 1e-4
    cut = blended(predictor, image, Tiling(64, 0, 16))
    assert np.abs(cut - whole).max() > 1e-3  # it does see some way


def test_windows_of_an_encoder_give_the_whole_images_logits() -> None:
    """ResNet-18 as a U-Net sees about 300 pixels far: 3/4 of a window of 1024 in common suffice.

    With the default overlap, logits differ by up to a fifth of their spread, near borders alone.
    """
    network = lively_network("unet", "resnet18")
    pixels = Preprocessing.for_images(3, scale=1.0)
    for module in network.modules():  # of that depth, random statistics make huge logits
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        network.train()(pixels(torch.from_numpy(noise(96, 96, 1))[None]))
    predictor = Predictor([load(network, Labels((0, 1)))], device=CPU)
    image = noise(32, 1300)
    whole = predictor.scores([image])[0]
    assert whole.std() > 0.1
    assert np.abs(blended(predictor, image, Tiling(1024, 0.75, 32)) - whole).max() < 1e-4
    usual = np.abs(blended(predictor, image, Tiling(1024, 0.25, 32)) - whole)
    assert usual.max() < 0.5 * whole.std() and usual.mean() < 0.01 * whole.std()
