"""Test-time augmentation: the transforms, their inverses, and the mean over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.prediction.models import make_predictor, noise
from unet_ddp.prediction.tta import KINDS, Transform, mean_logits, transforms

SQUARE = torch.tensor([[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Transform(), [[1, 2], [3, 4]]),
        (Transform(flip_rows=True), [[3, 4], [1, 2]]),
        (Transform(flip_columns=True), [[2, 1], [4, 3]]),
        (Transform(transpose=True), [[1, 3], [2, 4]]),
        (Transform(transpose=True, flip_rows=True), [[2, 4], [1, 3]]),  # a quarter to the left
        (Transform(transpose=True, flip_columns=True), [[3, 1], [4, 2]]),  # and to the right
    ],
    ids=str,
)
def test_a_transform_moves_pixels(transform: Transform, expected: list[list[int]]) -> None:
    assert transform.apply(SQUARE, (0, 1)).tolist() == expected
    assert transform.invert(torch.tensor(expected), (0, 1)).tolist() == SQUARE.tolist()
    batch = torch.arange(48).reshape(2, 4, 6, 1)
    assert torch.equal(transform.invert(transform.apply(batch, (1, 2)), (1, 2)), batch)


def test_kinds_are_groups_from_one_to_all_eight_symmetries() -> None:
    assert KINDS == ("none", "mirror", "flips", "d4")
    assert transforms("none") == [Transform()]
    assert transforms("mirror") == [Transform(), Transform(flip_columns=True)]
    assert {str(t.apply(SQUARE, (0, 1)).tolist()) for t in transforms("flips")} == {
        "[[1, 2], [3, 4]]", "[[2, 1], [4, 3]]", "[[3, 4], [1, 2]]", "[[4, 3], [2, 1]]",
    }  # fmt: skip
    assert len({str(t.apply(SQUARE, (0, 1)).tolist()) for t in transforms("d4")}) == 8


def left_is_first(pixels: Tensor) -> Tensor:
    """Logits of two classes that depend on the column: no symmetric network."""
    values = pixels[..., 0].float() * torch.arange(pixels.shape[2])
    return torch.stack([values, torch.zeros_like(values)], 1)


def always_second(pixels: Tensor) -> Tensor:
    zeros = torch.zeros(pixels.shape[:3])
    return torch.stack([zeros, zeros + 2], 1)


def test_the_mean_is_of_probabilities() -> None:
    pixels = torch.tensor([[[[1.0], [2.0]]]])  # (1, 1, 2, 1)
    # straight: logits (1*0, 2*1); mirrored: pixels (2, 1), logits (2*0, 1*1), mirrored back (1, 0)
    expected = (np.array([1 / (1 + np.exp(-0.0)), 1 / (1 + np.exp(-2.0))])
                + np.array([1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(-0.0))])) / 2  # fmt: skip
    found = mean_logits([left_is_first], pixels, "mirror").softmax(1)
    assert found.shape == (1, 2, 1, 2)
    assert np.allclose(found[0, 0, 0], expected)
    both = mean_logits([left_is_first, always_second], pixels, "mirror").softmax(1)
    second = 1 / (1 + np.exp(2.0))
    assert np.allclose(both[0, 0, 0], (expected + second) / 2)
    assert torch.equal(mean_logits([left_is_first], pixels, "none"), left_is_first(pixels))


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_follow_the_transforms_of_their_group_alone(kind: str) -> None:
    predictor, photo = make_predictor(tta=kind), noise(32, 48)
    straight = predictor(photo).probabilities
    for transform in transforms("d4"):
        turned = transform.apply(torch.from_numpy(photo), (0, 1)).contiguous().numpy()
        found = torch.from_numpy(predictor(turned).probabilities)
        difference = np.abs(transform.invert(found, (1, 2)).numpy() - straight).max()
        assert (difference < 1e-5) == (transform in transforms(kind)), transform
