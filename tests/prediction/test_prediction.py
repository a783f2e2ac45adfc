"""From scores to class ids and probabilities at the image's size."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.prediction.models import make_predictor, noise
from unet_ddp.data import masks as data_masks
from unet_ddp.data.labels import Labels
from unet_ddp.heads import SOFTMAX
from unet_ddp.prediction import prediction as module
from unet_ddp.prediction.prediction import (
    PredictedBand,
    Prediction,
    allocate,
    upsample,
)


def decide(scores: np.ndarray, threshold: float | None) -> Any:
    return PredictedBand(slice(None), scores, threshold, SOFTMAX).ids


def to_probabilities(scores: np.ndarray) -> Any:
    return PredictedBand(slice(None), scores, None, SOFTMAX).probabilities


TWO, THREE = Labels((0, 255)), Labels((0, 1, 2))


def test_two_classes_are_reduced_to_their_difference() -> None:
    logits = torch.tensor([1.0, 4.0]).view(1, 2, 1, 1)
    assert SOFTMAX.reduce(logits).tolist() == [[[[3.0]]]]
    three = torch.zeros(1, 3, 1, 1)
    assert SOFTMAX.reduce(three) is three


def test_of_two_classes_the_second_needs_the_threshold_or_more() -> None:
    scores = np.array([[[-1.0, 0.0, 1.0, math.log(3)]]], np.float32)
    assert decide(scores, None).tolist() == [[0, 0, 1, 1]]
    assert decide(scores, 0.5).tolist() == [[0, 1, 1, 1]]  # at least, not above
    assert decide(scores, 0.74).tolist() == [[0, 0, 0, 1]]  # log(3) is 0.75
    assert decide(scores, 0.76).tolist() == [[0, 0, 0, 0]]
    assert decide(scores, 0.2).tolist() == [[1, 1, 1, 1]]
    assert decide(scores, None).dtype == np.uint8


def test_of_more_classes_the_largest_score_wins() -> None:
    scores = np.array([[[1.0, 5.0]], [[2.0, -1.0]], [[0.0, 6.0]]], np.float32)
    assert decide(scores, None).tolist() == [[1, 2]]


def test_probabilities_are_the_softmax() -> None:
    two = to_probabilities(np.array([[[math.log(3), 0.0]]], np.float32))
    assert np.allclose(two, [[[0.25, 0.5]], [[0.75, 0.5]]])
    three = to_probabilities(np.log(np.array([[[1.0]], [[2.0]], [[5.0]]], np.float32)))
    assert np.allclose(three.ravel(), [0.125, 0.25, 0.625])


def test_shares_are_counted() -> None:
    scores = np.array([[[0.0, 9.0, 0.0]], [[5.0, 0.0, 5.0]], [[0.0, 0.0, 0.0]]], np.float32)
    found = Prediction([(0, scores)], THREE, input_size=(1, 3), size=(1, 3))
    assert found.ids.tolist() == [[1, 0, 1]]
    assert found.shares == [1 / 3, 2 / 3, 0]
    assert np.asarray(found.to_image()).tolist() == [[1, 0, 1]]


def test_what_it_hands_out_can_not_be_changed_through() -> None:
    """Issue: `mask[mask == 1] = 255` changed what `to_image` and `shares` said, silently."""
    scores = np.array([[[0.0, 9.0, 0.0]], [[5.0, 0.0, 5.0]], [[0.0, 0.0, 0.0]]], np.float32)
    found = Prediction([(0, scores)], THREE, input_size=(1, 3), size=(1, 3))
    for array in (found.mask, found.ids):
        with pytest.raises(ValueError, match="read-only"):
            array[array == 1] = 255
    found.masks[:] = True
    found.probabilities[:] = 0
    assert found.mask.tolist() == [[1, 0, 1]] and found.shares == [1 / 3, 2 / 3, 0]
    assert found.probabilities.sum() == pytest.approx(3)


@pytest.mark.parametrize("at_once", [1, 100, 1 << 18])
@pytest.mark.parametrize("size", [(40, 30), (80, 60), (123, 77), (401, 303), (1280, 31), (20, 9)])
def test_upsampling_in_bands_is_torchs_interpolation(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], at_once: int
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once * 10)
    scores = rng.normal(size=(3, 40, 30)).astype(np.float32)
    expected = F.interpolate(torch.from_numpy(scores)[None], size, mode="bilinear")[0].numpy()
    bands = [(a, scores[:, a:b]) for a, b in pairwise((0, 1, 17, 18, 40))]
    found = list(upsample(bands, (40, 30), size))
    tops = [0, *np.cumsum([band.shape[1] for _, band in found])]
    assert [top for top, _ in found] == tops[:-1] and tops[-1] == size[0]
    if size != (40, 30):
        assert all(band[0].size <= max(10 * at_once, size[1]) for _, band in found)
    whole = np.concatenate([band for _, band in found], axis=1)
    if size[0] >= 40:  # nobody reduces by this
        assert np.abs(whole - expected).max() < 1e-4
    (once,) = upsample([(0, scores)], (40, 30), size)
    assert once[0] == 0
    if size[0] >= 40:
        assert np.abs(once[1] - expected).max() < 1e-4


def test_upsampling_keeps_only_what_later_rows_need() -> None:
    taken: list[int] = []

    def bands() -> Any:
        for top in range(4):
            taken.append(top)
            yield top, np.full((1, 1, 1), top, np.float32)

    rows = [(len(taken), band[0, :, 0].tolist()) for _, band in upsample(bands(), (4, 1), (8, 1))]
    assert rows == [(2, [0, 0.25, 0.75]), (3, [1.25, 1.75]), (4, [2.25, 2.75, 3])]


@pytest.mark.parametrize("classes", [2, 5])
def test_probabilities_and_classes_agree(classes: int) -> None:
    found = make_predictor(classes=classes, scale=0.5)(noise(61, 83))
    probabilities = found.probabilities
    assert probabilities.shape == (classes, 61, 83) and probabilities.dtype == np.float32
    assert np.allclose(probabilities.sum(0), 1, atol=1e-5)
    assert np.array_equal(probabilities.argmax(0), found.ids)
    assert np.isclose(sum(found.shares), 1)
    assert found.shares[1] == (found.ids == 1).mean()


def test_the_threshold_holds_at_the_images_size() -> None:
    image = noise(61, 83)
    second = make_predictor(scale=0.5)(image).probabilities[1]
    threshold = float(np.quantile(second, 0.8))
    found = make_predictor(scale=0.5, threshold=threshold)(image).ids
    certain = np.abs(second - threshold) > 1e-6
    assert np.array_equal(found[certain], (second >= threshold)[certain])


def test_large_arrays_are_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_masks, "IN_MEMORY", 24)
    small, large = allocate((2, 3), np.float32), allocate((2, 4), np.float32)
    assert type(small) is np.ndarray and isinstance(large, np.memmap)
    assert large.shape == (2, 4) and large.dtype == np.float32
    large[:] = 7
    assert large.sum() == 56


def test_ids_are_computed_once() -> None:
    scores = [(0, np.ones((1, 2, 2), np.float32))]
    found = Prediction(scores, TWO, input_size=(2, 2), size=(2, 2))
    assert found.ids is found.ids
    scores.clear()
    assert found.ids.tolist() == [[1, 1], [1, 1]]
