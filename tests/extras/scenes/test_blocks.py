"""Rectangles of scores are enlarged as the whole is, and blocks bound the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.prediction.models import make_predictor
from unet_ddp.data.masks import find_sources
from unet_ddp.extras.scenes.blocks import BLOCK_BYTES, SceneImage, count_blocks, enlarge


@pytest.mark.parametrize(
    ("large", "small"), [((90, 70), (37, 70)), ((61, 64), (60, 9)), ((20, 30), (20, 30))]
)
def test_a_rectangle_is_enlarged_as_torch_does(
    large: tuple[int, int], small: tuple[int, int], rng: np.random.Generator
) -> None:
    scores = rng.normal(size=(2, *small)).astype(np.float32)
    whole = torch.nn.functional.interpolate(
        torch.from_numpy(scores)[None].double(), large, mode="bilinear"
    )
    for rows, columns in ((range(large[0]), range(large[1])), (range(7, 19), range(3, 30))):
        down, across = (
            find_sources(pixels, *sizes)
            for pixels, *sizes in zip((rows, columns), large, small, strict=True)
        )
        (top, stop), (left, right) = (
            (int(first[0]), int(second[-1]) + 1) for first, second, _ in (down, across)
        )
        assert (stop - top, right - left) <= (len(rows) + 1, len(columns) + 1)
        for step in (1, 5, small[0]):
            bands = [
                (row, scores[:, row : min(row + step, stop), left:right])
                for row in range(top, stop, step)
            ]
            found = np.concatenate([*enlarge(bands, down, across, left)], axis=1)
            expected = whole[0, :, rows.start : rows.stop, columns.start : columns.stop]
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_a_row_of_windows_of_a_block_has_a_size_that_does_not_grow_with_the_scene() -> None:
    """Of 8-bit colour: three copies of 3 bytes, and two of 4 for each score; two classes have one score."""
    for classes, scores in ((2, 1), (9, 9)):
        predictor = make_predictor(classes=classes)
        side, counts = predictor.tiling.window, list[int]()
        for width in (5_000, 20_000, 100_000):
            file: Any = None
            scene = SceneImage(file, file, (width, width), (width, width))
            counts.append(count_blocks(predictor, scene))
            widest = max(3 * side, BLOCK_BYTES // (side * (9 + 8 * scores)))
            assert (counts[-1] - 1) * widest < width <= counts[-1] * widest
        assert counts == {2: [1, 3, 12], 9: [2, 7, 33]}[classes]
