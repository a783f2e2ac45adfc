"""The picture of samples: which pixel has which colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.data.test_drawing import TWO, WHITE, load
from unet_ddp.data.drawing import TINT
from unet_ddp.extras.report.write import draw_samples


def sample(size: tuple[int, int], value: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    image = np.full((*size, 3), value, np.uint8)
    return image, np.zeros(size, np.uint8), np.ones(size, np.uint8)


def test_samples_are_rows_of_image_truth_and_prediction(tmp_path: Path) -> None:
    samples = [sample((2, 3), 10), sample((4, 5), 20)]
    draw_samples(samples, TWO, tmp_path / "x")
    picture = load(tmp_path / "x")
    assert picture.shape == (2 + 4 + 4, 3 * 5 + 2 * 4, 3)
    for top, left, height, width, value in ((0, 0, 2, 3, 10), (6, 0, 4, 5, 20)):
        row = picture[top : top + height]
        tinted = [(value + colour) // 2 for colour in TINT]
        for place, colour in enumerate(([value] * 3, [value] * 3, tinted)):
            start = left + place * (width + 4)
            assert (row[:, start : start + width] == colour).all()
            assert (row[:, start + width : start + width + 4] == WHITE).all()
    assert (picture[2:6] == WHITE).all() and (picture[:2, 17:] == WHITE).all()
