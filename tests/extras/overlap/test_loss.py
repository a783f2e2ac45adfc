"""The loss of overlapping classes, against other programs' and on several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from torch import Tensor
from torch.nn import functional as F

from tests import jobs
from tests.ranks import Ranks
from tests.training import loss_formulas
from unet_ddp.config import OptimizationConfig
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.world import sum_over_ranks
from unet_ddp.errors import UserError
from unet_ddp.extras.overlap.bits import join_planes
from unet_ddp.extras.overlap.loss import OverlapLoss
from unet_ddp.settings import with_values

CASES: list[dict[str, Any]] = [
    {},
    {"class_weights": (0.5, 2.0, 1.0)},
    {"loss": "tversky_ce", "boundary_weight": 4.0},
    {"loss": "dice_focal", "hard_pixels": 40.0},
    {"loss": "lovasz_ce"},
]


def make_loss(**settings: Any) -> OverlapLoss:
    return OverlapLoss(with_values(OptimizationConfig(), settings))


def draw(
    rng: np.random.Generator, classes: int, ignored: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (4, C, 9, 7), truth in the same shape, and the bit fields (4, 9, 7) of it."""
    truth = rng.random((4, classes, 9, 7)) < 0.4
    ids = join_planes(truth.swapaxes(0, 1), classes)
    ids[rng.random(ids.shape) < ignored] = IGNORE_ID
    logits = torch.from_numpy(rng.normal(0, 2, truth.shape))
    return logits.requires_grad_(), torch.from_numpy(truth), torch.from_numpy(ids)


@pytest.mark.parametrize("classes", [2, 7, 8, 15])
def test_the_loss_is_dice_and_binary_cross_entropy_of_others(
    rng: np.random.Generator, classes: int
) -> None:
    logits, truth, ids = draw(rng, classes)
    losses = make_loss()(logits, ids)
    dice = smp.losses.DiceLoss("multilabel")(logits, truth.double())
    entropy = smp.losses.SoftBCEWithLogitsLoss()(logits, truth.double())
    assert losses.region.item() == pytest.approx(dice.item(), abs=1e-6)
    assert losses.pixel.item() == pytest.approx(entropy.item(), abs=1e-6)
    (ours,) = torch.autograd.grad(losses.total, logits)
    (theirs,) = torch.autograd.grad(dice + entropy, logits)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-6)


def test_ignored_pixels_change_nothing(rng: np.random.Generator) -> None:
    logits, truth, ids = draw(rng, 3, ignored=0.3)
    valid = (ids != IGNORE_ID).unsqueeze(1).expand_as(truth)
    losses = make_loss()(logits, ids)
    entropy = F.binary_cross_entropy_with_logits(logits[valid], truth[valid].double())
    assert losses.pixel.item() == pytest.approx(entropy.item(), abs=1e-9)
    (gradient,) = torch.autograd.grad(losses.total, logits)
    assert (gradient[~valid] == 0).all() and (gradient[valid] != 0).all()
    changed = make_loss()(torch.where(valid, logits, -logits), ids)
    assert torch.equal(changed.total, losses.total)


def test_a_better_mask_has_a_lower_loss(rng: np.random.Generator) -> None:
    _, truth, ids = draw(rng, 4)
    for settings in CASES[2:]:
        loss = make_loss(**settings)
        totals = [loss((2.0 * truth - 1) * sure, ids).total.item() for sure in (-3.0, 0.1, 3, 30)]
        assert totals == sorted(totals, reverse=True), settings
        assert totals[-1] < 1e-6, settings


@pytest.mark.parametrize("loss", ["dice_ce", "dice_focal"])
def test_the_pixel_term_is_the_weighted_mean_of_the_classes_binary_terms(
    rng: np.random.Generator, loss: str
) -> None:
    """By the papers' formulas for two classes, "not c" and "c"."""
    logits, truth, ids = draw(rng, 3)
    weights, terms = (0.5, 2.0, 1.3), []
    for c in range(3):
        pair = torch.stack([torch.zeros_like(logits[:, c]), logits[:, c]], 1).detach().numpy()
        mask = truth[:, c].numpy().astype(np.uint8)
        gamma = 2.0 if loss == "dice_focal" else 0.0
        terms.append(loss_formulas.pixel_term(pair, mask, np.ones(2), gamma=gamma))
    found = make_loss(loss=loss, class_weights=weights)(logits, ids).pixel.item()
    assert found == pytest.approx(np.average(terms, weights=weights), rel=1e-6)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(UserError, match=r"--label-smoothing 10: is not for classes that overlap"):
        make_loss(label_smoothing=10.0)


def gradients() -> list[tuple[np.ndarray, np.ndarray]]:
    """For each case, the losses and the gradient of a 1x1 convolution's weights, in float64."""
    world = join("cpu", 60)
    mine = [0, 3, 5, 7][world.rank :: world.size]  # by their rows that are ignored, of 7
    images, masks, _ = jobs.stack([jobs.fixed_sample(index) for index in mine])
    numbers = images.long().sum(3)
    fields = torch.where(masks == IGNORE_ID, masks, (numbers % 8).to(torch.uint8))
    scale = torch.tensor(mine, dtype=torch.float64).exp().view(-1, 1, 1, 1) / 255
    found = []
    for options in CASES:
        weights = torch.linspace(-2, 3, 9, dtype=torch.float64).view(3, 3).requires_grad_()
        pixels = images.permute(0, 3, 1, 2) * scale
        losses = make_loss(**options)(torch.einsum("ck,nkhw->nchw", weights, pixels), fields)
        losses.total.backward()
        assert weights.grad is not None
        mean = sum_over_ranks(weights.grad) / world.size  # as DDP takes it
        found.append((torch.stack([part.detach() for part in losses]).numpy(), mean.numpy()))
    leave(world)
    return found


def test_losses_and_gradients_agree_on_1_2_and_4_ranks(ranks: Ranks) -> None:
    alone = ranks.run(1, gradients)[0]
    for size in (2, 4):
        for found in ranks.run(size, gradients):
            for case, mine, theirs in zip(CASES, found, alone, strict=True):
                for one, other in zip(mine, theirs, strict=True):
                    assert np.abs(other).max() > 1e-3, case
                    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6, err_msg=str(case))
