"""A statistic of a network or a loss of the user's own that keeps the gradient of the pass which has computed it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.config import OptimizationConfig
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.own_loss import try_loss
from unet_ddp.training.own_network import try_network


class Part(nn.Module):
    """What a network and a loss have: a mean of earlier passes, and a way to change values by it."""

    change: ClassVar[Callable[..., Tensor]]

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.last: Any = None
        if sizes:
            self.body, self.head = nn.Conv2d(sizes[0], 4, 3, padding=1), nn.Conv2d(4, sizes[1], 1)

    def changed(self, values: Tensor) -> Tensor:
        return type(self).change(self, values)


class Network(Part):
    stride = 1

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.changed(self.body(images)).relu())  # type: ignore[no-any-return]


class Loss(Part):
    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        return F.cross_entropy(self.changed(logits), masks, ignore_index=255)


def moved(part: Any, values: Tensor) -> Tensor:
    part.last = values  # to be looked at
    if part.training:
        part.mean = 0.9 * part.mean + 0.1 * values.mean()
    return values - part.mean


def moved_in_place(part: Any, values: Tensor) -> Tensor:
    if part.training:
        part.mean.mul_(0.9).add_(0.1 * values.mean())
    return values - part.mean


def moved_before(part: Any, values: Tensor) -> Tensor:
    found = values - part.mean
    if part.training:
        part.mean = 0.9 * part.mean + 0.1 * values.mean()
    return found


KEEPING = moved, moved_in_place, moved_before


def detached(part: Any, values: Tensor) -> Tensor:
    return moved(part, values.detach()) + values - values.detach()


def without_gradient(part: Any, values: Tensor) -> Tensor:
    with torch.no_grad():
        moved(part, values)
    return values - part.mean


def of_this_pass(part: Any, values: Tensor) -> Tensor:
    """Return values by their own mean, with a gradient of it; the next pass has another one."""
    part.mean = values.mean()
    return values - part.mean


def detached_later(part: Any, values: Tensor) -> Tensor:
    part.mean = part.mean.detach()
    return moved(part, values)


def looked_at(part: Any, values: Tensor) -> Tensor:
    part.last = {"values": [values]}
    return values


TAKEN = detached, without_gradient, of_this_pass, detached_later, looked_at


def check_network() -> None:
    architecture = choose_architecture(f"{__name__}:Network", None, channels=3, num_classes=2)
    torch.manual_seed(0)
    network = build_network(architecture)
    try_network("Network", network, lambda: build_network(architecture), torch.rand(2, 3, 8, 8))
    take_steps(network, lambda k: network(torch.rand(2, 3, 8, 8)).mean())


def check_loss() -> None:
    loss = SegmentationLoss(OptimizationConfig(loss=f"{__name__}:Loss+ce"))
    new = try_loss(loss, 2, torch.device("cpu"))[0]
    layer, masks = nn.Conv2d(3, 2, 1), torch.zeros(2, 8, 8).long()
    take_steps(layer, lambda k: new(layer(torch.rand(2, 3, 8, 8)), masks).total)


def take_steps(part: nn.Module, compute: Callable[[int], Tensor]) -> None:
    optimizer = torch.optim.SGD(part.parameters(), 0.1)
    for k in range(3):
        compute(k).backward()
        optimizer.step()


def network_detached(self: Any, images: Tensor) -> Tensor:
    return self.changed(self.head(self.body(images))).detach()  # type: ignore[no-any-return]


def loss_detached(self: Any, logits: Tensor, masks: Tensor) -> Tensor:
    return (self.changed(logits).argmax(1) != masks).double().mean()


def check_loss_alone() -> None:
    try_loss(SegmentationLoss(OptimizationConfig(loss=f"{__name__}:Loss")), 2, torch.device("cpu"))


@pytest.mark.parametrize(
    ("check", "kind", "forward", "said"),
    [
        (check_network, Network, network_detached, "--model .*: its logits have no gradient"),
        (check_loss_alone, Loss, loss_detached, "--loss .*: has no gradient"),
    ],
)
def test_one_without_a_gradient_is_a_line_also_if_it_keeps_values_that_have_one(
    check: Any, kind: Any, forward: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue: torch's traceback, of an element that does not require a gradient."""
    monkeypatch.setattr(Part, "change", looked_at, raising=False)
    monkeypatch.setattr(kind, "forward", forward)
    with pytest.raises(UserError, match=said):
        check()


@pytest.mark.parametrize("check", [check_network, check_loss])
@pytest.mark.parametrize("change", [*KEEPING, *TAKEN])
def test_one_that_the_second_step_could_not_follow_is_a_line(
    check: Any, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue: torch's traceback, of a graph that has been freed, after the run had its folder.

    One that keeps no gradient, or only within a step, is taken.
    """
    monkeypatch.setattr(Part, "change", change, raising=False)
    said = r"--(model|loss) .*: mean of (Network|Loss) keeps the gradient of .*\.detach\(\)"
    with pytest.raises(UserError, match=said) if change in KEEPING else nullcontext():
        check()
