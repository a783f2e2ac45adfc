"""Each loss is its paper's formula, over the valid pixels of the global batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.operations import Operations
from tests.tiny import make_loss
from tests.training import loss_formulas
from unet_ddp.config import LOSS_NAMES
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.extras.losses.factors import is_hard, share_of_others
from unet_ddp.training.losses import SegmentationLoss

NAMES = LOSS_NAMES
OPTIONS: list[dict[str, Any]] = [
    {"loss": "ce", "label_smoothing": 10.0},
    {"loss": "ce", "hard_pixels": 25.0},
    {"loss": "ce", "boundary_weight": 5.0},
    {"loss": "dice_focal", "label_smoothing": 20.0, "hard_pixels": 40.0, "boundary_weight": 2.0},
]
CASES = [{"loss": name} for name in NAMES] + OPTIONS


def logits_for(masks: torch.Tensor, classes: int, certainty: float) -> torch.Tensor:
    """Logits that name the right class with that certainty."""
    clean = masks.clamp(max=classes - 1).long()
    return F.one_hot(clean, classes).permute(0, 3, 1, 2).double() * certainty


@pytest.fixture
def masks(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.integers(0, 3, (2, 20, 20)).astype(np.uint8))


def test_a_better_prediction_has_a_smaller_loss(masks: torch.Tensor) -> None:
    totals = [
        float(SegmentationLoss()(logits_for(masks, 3, c), masks).total) for c in (0, 1, 3, 30)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < 1e-6
    wrong = (masks + 1) % 3
    assert float(SegmentationLoss()(logits_for(wrong, 3, 30), masks).region) > 0.99


def test_ignored_pixels_have_no_gradient(masks: torch.Tensor, rng: np.random.Generator) -> None:
    masks[0, :7] = IGNORE_ID
    logits = torch.from_numpy(rng.normal(size=(2, 3, 20, 20))).requires_grad_()
    SegmentationLoss()(logits, masks).total.backward()
    assert logits.grad is not None
    assert (logits.grad[0, :, :7] == 0).all()
    assert (logits.grad[0, :, 7:] != 0).all()


def test_a_class_that_does_not_occur_is_no_part_of_dice() -> None:
    masks = torch.zeros(1, 8, 8, dtype=torch.uint8)
    losses = SegmentationLoss()(logits_for(masks, 5, 30), masks)
    assert float(losses.region) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    """512x512 pixels of one class: their sum is infinite in float16."""
    masks = torch.zeros(2, 512, 512, dtype=torch.uint8)
    logits = torch.zeros(2, 64, 512, 512, dtype=dtype)
    logits[:, 0] = 9
    losses = SegmentationLoss()(logits, masks)
    assert torch.isfinite(losses.total)
    assert losses.total.dtype == torch.float32
    assert float(losses.region) < 0.02


def test_weights_of_the_terms(masks: torch.Tensor) -> None:
    logits = logits_for(masks, 3, 1)
    plain = SegmentationLoss()(logits, masks)
    both = make_loss(loss_weights=(3, 2))(logits, masks)
    assert (both.region, both.pixel) == (plain.region, plain.pixel)
    expected = 3 * float(plain.region) + 2 * float(plain.pixel)
    assert float(both.total) == pytest.approx(expected)


def test_all_sums_are_taken_over_ranks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if another rank had the same batch: ratios stay, a mean over two would too."""
    shapes = []

    def doubled(sums: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(sums.shape))
        return 2 * sums

    masks = torch.tensor([[[0, 1, 2, 2]]], dtype=torch.uint8)
    logits = torch.randn(1, 3, 1, 4, dtype=torch.float64)
    alone = SegmentationLoss()(logits, masks)
    monkeypatch.setattr("unet_ddp.training.losses.sum_over_ranks", doubled)
    together = SegmentationLoss()(logits, masks)
    assert shapes == [(10,)]
    torch.testing.assert_close(tuple(together), tuple(alone), rtol=1e-12, atol=0)


def test_autocast_does_not_reach_the_loss() -> None:
    masks = torch.zeros(1, 4, 4, dtype=torch.uint8)
    logits = torch.randn(1, 3, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = SegmentationLoss()(logits, masks)
    assert all(part.dtype == torch.float32 for part in losses)
    assert torch.equal(losses.total, SegmentationLoss()(logits, masks).total)


def test_one_softmax_serves_both_terms_and_no_sum_is_in_random_order() -> None:
    """NLLLoss adds up in random order on a GPU, as scattering and gathering's gradient do."""
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    with Operations() as operations:
        losses = SegmentationLoss()(logits, torch.zeros(2, 4, 4, dtype=torch.uint8))
        losses.total.backward()
    names = [operation.overloadpacket.__name__ for operation, *_ in operations.calls]
    softmaxes = [name for name in names if "softmax" in name]
    assert softmaxes == ["_log_softmax", "_log_softmax_backward_data"]
    assert not any(name.startswith(("nll", "scatter", "gather", "index")) for name in names)


def random_batch(rng: np.random.Generator, side: int = 33) -> tuple[np.ndarray, np.ndarray]:
    """Logits and masks of four images: rows ignored in two, all of one, a class absent in another."""
    masks = rng.integers(0, 3, (4, side, side + 4)).astype(np.uint8)
    masks[0, : side // 3], masks[1], masks[3] = IGNORE_ID, IGNORE_ID, np.minimum(masks[3], 1)
    masks[2, :, : side // 2] = 2  # a region: not all pixels are among others
    return rng.normal(size=(4, 3, side, side + 4)) * 2, masks


@pytest.mark.parametrize("options", CASES, ids=str)
def test_each_loss_is_the_formula_of_its_paper(
    rng: np.random.Generator, options: dict[str, Any]
) -> None:
    logits, masks = random_batch(rng)
    weights = (0.5, 1.0, 2.0)
    found = make_loss(**options, class_weights=weights)(
        torch.from_numpy(logits), torch.from_numpy(masks)
    )
    vector, terms = np.array(weights), options["loss"].split("_")
    region = pixel = 0.0
    if "lovasz" in terms:
        region = loss_formulas.lovasz(logits, masks, vector)
    elif terms[0] in ("dice", "tversky"):
        alpha = {"dice": 0.5, "tversky": 0.3}[terms[0]]
        region = loss_formulas.tversky(logits, masks, vector, alpha)
    if terms[-1] in ("ce", "focal"):
        pixel = loss_formulas.pixel_term(
            logits,
            masks,
            vector,
            gamma=2.0 if terms[-1] == "focal" else 0.0,
            smoothing=options.get("label_smoothing", 0.0) / 100,
            percent=options.get("hard_pixels", 100.0),
            boundary=options.get("boundary_weight", 0.0),
        )
    expected = (region + pixel, region, pixel)
    assert [float(part) for part in found] == pytest.approx(expected, rel=0, abs=1e-10)
    assert (found.region == 0, found.pixel == 0) == (region == 0, pixel == 0)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_gradients_agree_with_differences(
    rng: np.random.Generator, options: dict[str, Any]
) -> None:
    logits, masks = (torch.from_numpy(part) for part in random_batch(rng, side=5))
    loss = make_loss(**options, class_weights=(0.5, 1.0, 2.0))
    assert torch.autograd.gradcheck(
        lambda logits: loss(logits, masks).total, logits.requires_grad_(), fast_mode=True
    )
    losses = loss(logits, masks)
    assert not losses.region.requires_grad and not losses.pixel.requires_grad


@pytest.mark.parametrize("options", CASES, ids=str)
def test_every_loss_is_finite_whatever_the_batch(options: dict[str, Any]) -> None:
    """No valid pixel, one class, certainty in the right or the wrong one; in float32."""
    for masks in (torch.full((2, 6, 5), IGNORE_ID), torch.zeros(2, 6, 5).long()):
        for certainty in (0.0, 500.0, -500.0):
            logits = torch.zeros(2, 3, 6, 5)
            logits[:, 0] = certainty
            logits.requires_grad_()
            total = make_loss(**options)(logits, masks).total
            total.backward()
            assert logits.grad is not None
            assert torch.isfinite(total) and torch.isfinite(logits.grad).all()
            assert (masks == 0).all() or not (total != 0 or logits.grad.any())


@pytest.mark.parametrize("percent", [0.1, 10, 50, 99])
def test_the_hardest_pixels_are_those_of_a_sorted_list(
    rng: np.random.Generator, percent: float
) -> None:
    """All asked for, and none whose loss is more than 1/128 below theirs."""
    losses = torch.from_numpy(rng.exponential(size=(3, 50, 70)) ** 2)
    masks = torch.from_numpy(np.where(rng.random((3, 50, 70)) < 0.2, IGNORE_ID, 0))
    hard = is_hard(losses, masks, percent)
    assert not hard[masks == IGNORE_ID].any()
    valid = losses[masks != IGNORE_ID]
    wanted = valid.sort(descending=True).values[: int(np.ceil(len(valid) * percent / 100))]
    assert hard.sum() >= len(wanted)
    assert hard[(losses >= wanted[-1]) & (masks != IGNORE_ID)].all()
    assert (losses[hard] > wanted[-1] * (1 - 1 / 127)).all()


def test_pixels_far_from_other_classes_keep_their_weight() -> None:
    masks = torch.zeros(1, 80, 80, dtype=torch.long)
    masks[:, 40:] = 1
    share = share_of_others(F.one_hot(masks).permute(0, 3, 1, 2).double())[0, 0]
    assert (share[:24] == 0).all() and (share[56:] == 0).all()
    assert float(share[39, 20]) == pytest.approx(15 / 31)
    assert float(share[25, 20]) == pytest.approx(1 / 31)
    assert float(share[0, 0]) == 0  # beyond the image's edge is nothing


def test_what_each_loss_writes_into_its_columns() -> None:
    assert SegmentationLoss().columns == ("dice_loss", "cross_entropy")
    assert make_loss(loss="focal").columns == (None, "focal_loss")
    assert make_loss(loss="lovasz").columns == ("lovasz_loss", None)
    assert len({make_loss(loss=name).columns for name in NAMES}) == len(NAMES)


def test_the_hardest_pixels_take_one_collective_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With whole numbers the threshold is the same on every rank, in whatever order they are added."""
    kinds = []

    def noted(sums: torch.Tensor) -> torch.Tensor:
        kinds.append(sums.dtype)
        return sums

    for module in ("training.losses", "extras.losses.factors"):
        monkeypatch.setattr(f"unet_ddp.{module}.sum_over_ranks", noted)
    batch = torch.randn(1, 3, 4, 4), torch.zeros(1, 4, 4, dtype=torch.uint8)
    for name in NAMES:
        make_loss(loss=name)(*batch)
    assert kinds == [torch.float32] * len(NAMES)
    make_loss(hard_pixels=20, boundary_weight=1, label_smoothing=10.0)(*batch)
    assert kinds[len(NAMES) :] == [torch.int64, torch.float32]
