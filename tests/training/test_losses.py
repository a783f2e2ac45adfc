"""The loss is soft Dice and cross-entropy, over the valid pixels of the global batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.operations import Operations
from unet_ddp.data.labels import IGNORE_ID
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
    both = DiceCrossEntropy(dice_weight=3, cross_entropy_weight=2)(logits, masks)
    assert (both.dice, both.cross_entropy) == (plain.dice, plain.cross_entropy)
    expected = 3 * float(plain.dice) + 2 * float(plain.cross_entropy)
    assert float(both.total) == pytest.approx(expected)


def test_two_pixels_by_hand() -> None:
    """Probabilities 3/4 and 1/4 for the truth, class 0 weighs twice as much as class 1."""
    logits = torch.tensor([[3.0, 3.0], [1.0, 1.0]]).log().view(1, 2, 1, 2).requires_grad_()
    masks = torch.tensor([[[0, 1]]], dtype=torch.uint8)
    losses = DiceCrossEntropy(class_weights=(2.0, 1.0))(logits, masks)
    entropy = -(2 * np.log(3 / 4) + np.log(1 / 4)) / 3
    dice = [1 - 2 * 0.75 / (1.5 + 1), 1 - 2 * 0.25 / (0.5 + 1)]
    assert float(losses.cross_entropy) == pytest.approx(entropy)
    assert float(losses.dice) == pytest.approx((2 * dice[0] + dice[1]) / 3)
    assert losses.total.requires_grad
    assert not losses.dice.requires_grad and not losses.cross_entropy.requires_grad


def test_all_sums_are_taken_over_ranks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if another rank had the same batch: ratios stay, a mean over two would too."""
    shapes = []

    def doubled(sums: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(sums.shape))
        return 2 * sums

    masks = torch.tensor([[[0, 1, 2, 2]]], dtype=torch.uint8)
    logits = torch.randn(1, 3, 1, 4, dtype=torch.float64)
    alone = DiceCrossEntropy()(logits, masks)
    monkeypatch.setattr("unet_ddp.training.losses.sum_over_ranks", doubled)
    together = DiceCrossEntropy()(logits, masks)
    assert shapes == [(10,)]
    torch.testing.assert_close(tuple(together), tuple(alone), rtol=1e-12, atol=0)


def test_autocast_does_not_reach_the_loss() -> None:
    masks = torch.zeros(1, 4, 4, dtype=torch.uint8)
    logits = torch.randn(1, 3, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = DiceCrossEntropy()(logits, masks)
    assert all(part.dtype == torch.float32 for part in losses)
    assert torch.equal(losses.total, DiceCrossEntropy()(logits, masks).total)


def test_one_softmax_serves_both_parts_and_no_sum_is_in_random_order() -> None:
    """NLLLoss adds up in random order on a GPU, as scattering and gathering's gradient do."""
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    with Operations() as operations:
        losses = DiceCrossEntropy()(logits, torch.zeros(2, 4, 4, dtype=torch.uint8))
        losses.total.backward()
    names = [operation.overloadpacket.__name__ for operation, *_ in operations.calls]
    softmaxes = [name for name in names if "softmax" in name]
    assert softmaxes == ["_log_softmax", "_log_softmax_backward_data"]
    assert not any(name.startswith(("nll", "scatter", "gather", "index")) for name in names)
