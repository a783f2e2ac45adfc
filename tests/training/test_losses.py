"""The loss and the scores mean what their names say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.metrics.counts import confusion
from unet_ddp.metrics.scores import Scores
from unet_ddp.training.losses import DiceCrossEntropy


def logits_for(masks: torch.Tensor, classes: int, certainty: float) -> torch.Tensor:
    """Logits that name the right class with that certainty."""
    clean = masks.clamp(max=classes - 1).long()
    return F.one_hot(clean, classes).permute(0, 3, 1, 2).double() * certainty


@pytest.fixture
def masks(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.integers(0, 3, (2, 20, 20)).astype(np.uint8))


def test_a_better_prediction_has_a_smaller_loss(masks: torch.Tensor) -> None:
    totals = [
        float(DiceCrossEntropy()(logits_for(masks, 3, c), masks).total) for c in (0, 1, 3, 30)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < 1e-6
    wrong = (masks + 1) % 3
    assert float(DiceCrossEntropy()(logits_for(wrong, 3, 30), masks).dice) > 0.99


def test_parts_agree_with_their_formulas(masks: torch.Tensor, rng: np.random.Generator) -> None:
    masks[0, :7] = IGNORE_ID
    logits = torch.from_numpy(rng.normal(size=(2, 3, 20, 20)))
    weights = (0.2, 1.0, 3.0)
    losses = DiceCrossEntropy(class_weights=weights)(logits, masks)
    entropy = F.cross_entropy(
        logits,
        masks.long(),
        weight=torch.tensor(weights, dtype=torch.float64),
        ignore_index=IGNORE_ID,
    )
    assert float(losses.cross_entropy) == pytest.approx(float(entropy), rel=1e-12)
    dice = []
    probabilities = logits.softmax(1)
    valid = masks != IGNORE_ID
    for k in range(3):
        p, t = probabilities[:, k][valid], (masks == k)[valid].double()
        dice.append(float(1 - 2 * (p * t).sum() / (p.sum() + t.sum())))
    assert float(losses.dice) == pytest.approx(np.average(dice, weights=weights), rel=1e-12)
    assert float(losses.total) == pytest.approx(float(losses.dice + losses.cross_entropy))


def test_ignored_pixels_have_no_gradient(masks: torch.Tensor, rng: np.random.Generator) -> None:
    masks[0, :7] = IGNORE_ID
    logits = torch.from_numpy(rng.normal(size=(2, 3, 20, 20))).requires_grad_()
    DiceCrossEntropy()(logits, masks).total.backward()
    assert logits.grad is not None
    assert (logits.grad[0, :, :7] == 0).all()
    assert (logits.grad[0, :, 7:] != 0).all()


def test_nothing_but_ignored_pixels_is_no_nan() -> None:
    logits = torch.randn(1, 2, 4, 4, requires_grad=True)
    losses = DiceCrossEntropy()(logits, torch.full((1, 4, 4), IGNORE_ID, dtype=torch.uint8))
    losses.total.backward()
    assert float(losses.total.detach()) == 0
    assert torch.isfinite(logits.grad).all()


def test_a_class_that_does_not_occur_is_no_part_of_dice() -> None:
    masks = torch.zeros(1, 8, 8, dtype=torch.uint8)
    losses = DiceCrossEntropy()(logits_for(masks, 5, 30), masks)
    assert float(losses.dice) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    """512x512 pixels of one class: their sum is infinite in float16."""
    masks = torch.zeros(2, 512, 512, dtype=torch.uint8)
    logits = torch.zeros(2, 64, 512, 512, dtype=dtype)
    logits[:, 0] = 9
    losses = DiceCrossEntropy()(logits, masks)
    assert torch.isfinite(losses.total)
    assert losses.total.dtype == torch.float32
    assert float(losses.dice) < 0.02


def test_weights_of_the_parts(masks: torch.Tensor) -> None:
    logits = logits_for(masks, 3, 1)
    plain = DiceCrossEntropy()(logits, masks)
    only = DiceCrossEntropy(dice_weight=0, cross_entropy_weight=2)(logits, masks)
    assert float(only.total) == pytest.approx(2 * float(plain.cross_entropy))


def test_counts(rng: np.random.Generator) -> None:
    truth = torch.from_numpy(rng.integers(0, 4, (3, 9, 9)).astype(np.uint8))
    predicted = torch.from_numpy(rng.integers(0, 4, (3, 9, 9)))
    truth[0, 0] = IGNORE_ID
    counts = confusion(predicted, truth, 4)
    assert counts.dtype == torch.int64
    assert counts.sum() == 3 * 81 - 9
    assert counts[2, 1] == ((truth == 2) & (predicted == 1)).sum()
    per_image = sum(confusion(predicted[n : n + 1], truth[n : n + 1], 4) for n in range(3))
    assert torch.equal(counts, per_image)


def test_scores() -> None:
    counts = torch.tensor([[50, 10, 0], [5, 35, 0], [0, 0, 0]])
    scores = Scores.from_confusion(counts)
    assert scores.dice_per_class[:2] == [100 / 115, 70 / 85]
    assert scores.iou_per_class[:2] == [50 / 65, 35 / 50]
    assert math.isnan(scores.dice_per_class[2])  # never occurs: no part of the mean
    assert scores.dice == pytest.approx((100 / 115 + 70 / 85) / 2)


def test_two_classes_are_scored_by_their_foreground() -> None:
    scores = Scores.from_confusion(torch.tensor([[900, 50], [25, 25]]))
    assert scores.dice == 50 / 125
    assert scores.iou == 25 / 100


def test_a_better_mask_scores_higher(rng: np.random.Generator) -> None:
    truth = torch.from_numpy((rng.random((1, 40, 40)) < 0.3).astype(np.uint8))
    previous = 1.01
    for share in (0.0, 0.1, 0.3, 0.6):
        spoilt = torch.where(torch.from_numpy(rng.random((1, 40, 40)) < share), 1 - truth, truth)
        dice = Scores.from_confusion(confusion(spoilt, truth, 2)).dice
        assert dice < previous
        previous = dice
