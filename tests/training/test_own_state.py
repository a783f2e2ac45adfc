"""State of parts of the user's own in training: buffers that a pass assigns, losses with buffers and weights."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.ranks import Ranks
from tests.tiny import make_batch, make_network, make_state
from unet_ddp.distributed.join import join, leave
from unet_ddp.training.losses import Losses, SegmentationLoss
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import average_gradients, train_steps

BATCHES = [make_batch(number) for number in range(8)]


class Norm(nn.Module):
    """Batch norm by hand: each pass assigns its averages."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * images.mean((0, 2, 3), keepdim=True).detach()
        return images - self.mean


class Learnt(SegmentationLoss):
    """The weight of a term is learnt, and passes are counted in a buffer that is assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("passes", torch.zeros(()))
        self.bad_pass = -1

    def forward(self, logits: Tensor, masks: Tensor) -> Losses:
        self.passes = self.passes + 1
        entropy = F.cross_entropy(logits.float(), masks.long(), ignore_index=255)
        total = torch.exp(-self.weight) * entropy + self.weight
        if int(self.passes) == self.bad_pass:
            total = total * math.nan
        return Losses(total, total.detach(), entropy.detach())


def new_state(loss: Learnt | None = None, **how: Any) -> TrainState:
    network = nn.Sequential(Norm(), make_network())
    loss = loss or Learnt()
    groups = [{"params": [loss.weight], "weight_decay": 0.0}, {"params": [*network.parameters()]}]
    optimizer = torch.optim.AdamW(groups, fused=True)
    return make_state(network, loss=loss, optimizer=optimizer, **how)


def test_a_buffer_that_passes_assign_is_averaged_saved_and_restored() -> None:
    state = new_state(ema=0.9)
    mean = state.network[0].mean
    list(train_steps(state, iter(BATCHES), until=3))
    assert state.network[0].mean is mean and mean.abs().max() > 0
    assert state.average is not None
    assert torch.equal(state.average.network[0].mean, mean)  # batch norm's are copied
    assert torch.equal(state.state_dict()["model"]["0.mean"], mean)


def test_a_skipped_step_takes_back_what_passes_have_assigned() -> None:
    state = new_state(ema=0.9)
    list(train_steps(state, iter(BATCHES), until=2))
    before = copy.deepcopy(state.state_dict())
    state.loss.bad_pass = 3
    (report,) = train_steps(state, iter(BATCHES), until=3)
    assert not report.is_finite
    after = state.state_dict()
    for part in ("model", "ema", "loss"):
        for name, value in before[part].items():
            assert torch.equal(after[part][name], value), f"{part}: {name}"


def test_a_loss_with_weights_learns_and_is_resumed_to_the_bit() -> None:
    whole, stopped = new_state(), new_state()
    list(train_steps(whole, iter(BATCHES), until=4))
    assert whole.loss.weight.abs().item() > 1e-4 and int(whole.loss.passes) == 4
    list(train_steps(stopped, iter(BATCHES), until=2))
    resumed = new_state()
    resumed.load_state_dict(copy.deepcopy(stopped.state_dict()))
    list(train_steps(resumed, iter(BATCHES[2:]), until=4))
    for part in ("model", "loss"):
        one, other = whole.state_dict()[part], resumed.state_dict()[part]
        assert all(torch.equal(one[name], other[name]) for name in one), part


def test_a_loss_without_state_of_its_own_leaves_none_in_a_checkpoint() -> None:
    assert "loss" not in make_state().state_dict()


def averaged() -> list[list[float] | None]:
    world = join("cpu", 60)
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(()))]
    for k, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, world.rank + 10.0 * k)
    average_gradients(parameters)
    leave(world)
    return [parameter.grad.flatten().tolist() for parameter in parameters]  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_of_a_loss_are_averaged_over_ranks(ranks: Ranks, size: int) -> None:
    mean = (size - 1) / 2
    assert ranks.run(size, averaged) == [[[mean, mean], [mean + 10]]] * size
