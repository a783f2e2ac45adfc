"""Networks of the user's own with tensors of other types, sizes or gradients than those of a usual one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import CPU, PIXELS, make_batch, make_state
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.prediction.backends import TorchBackend
from unet_ddp.training.own_network import try_network
from unet_ddp.training.step import forward, train_steps

Function = Callable[..., Any]


class Network(nn.Module):
    """A network that keeps what `keep` makes of it, and applies `change` to its features."""

    stride = 2
    keep: ClassVar[Function] = staticmethod(lambda network: None)
    change: ClassVar[Function] = staticmethod(lambda network, features: features)
    seen: ClassVar[list[torch.dtype]] = []

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Conv2d(4, num_classes, 1)
        self.kept = self.keep(self)

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.dtype)
        logits: Tensor = self.head(self.change(self, self.body(images).relu()))
        return logits


def build() -> nn.Module:
    name = f"{__name__}:Network"
    return build_network(choose_architecture(name, None, channels=3, num_classes=2))


def try_own(monkeypatch: pytest.MonkeyPatch, keep: Function, change: Function) -> Any:
    """Return a network after its trial."""
    monkeypatch.setattr(Network, "keep", staticmethod(keep))
    monkeypatch.setattr(Network, "change", staticmethod(change))
    monkeypatch.setattr(Network, "seen", [])
    torch.manual_seed(0)
    network = build()
    try_network("Network", network, build, torch.rand(2, 3, 8, 8))
    return network


def constant(value: Tensor) -> Function:
    return lambda network: nn.Parameter(value, requires_grad=False)


def in_type(dtype: torch.dtype) -> Function:
    def convert(network: nn.Module) -> None:
        network.to(dtype)

    return convert


def last_in_bfloat16(network: Any) -> None:
    network.head.bfloat16()


def unchanged(network: Any, features: Tensor) -> Tensor:
    return features


TYPES: dict[str, tuple[Function, Function, torch.dtype]] = {
    "an index first": (
        constant(torch.tensor([3, 0, 1, 2])),
        lambda n, features: features[:, n.kept],
        torch.float32,
    ),
    "bytes first": (
        constant(torch.ones(1, dtype=torch.uint8)),
        lambda n, features: features * n.kept,
        torch.float32,
    ),
    "a constant of bfloat16 first": (
        constant(torch.ones(1, dtype=torch.bfloat16)),
        lambda n, features: features * n.kept,
        torch.float32,
    ),
    "a scale of float64 first": (
        lambda n: nn.Parameter(torch.ones((), dtype=torch.float64)),
        lambda n, features: (features * n.kept).float(),
        torch.float32,
    ),
    "a last layer of bfloat16": (
        last_in_bfloat16,
        lambda n, features: features.bfloat16(),
        torch.float32,
    ),
    "float64": (in_type(torch.float64), unchanged, torch.float64),
    "bfloat16": (in_type(torch.bfloat16), unchanged, torch.bfloat16),
    "float16": (in_type(torch.float16), unchanged, torch.float16),
}


@pytest.mark.parametrize("what", TYPES)
def test_training_trial_and_prediction_give_images_of_one_type(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an average of the weights, and prediction gives what validation scored."""
    keep, change, expected = TYPES[what]
    network = try_own(monkeypatch, keep, change)
    assert {*Network.seen} == {expected}
    state = make_state(network, ema=0.9)
    reports = [*train_steps(state, map(make_batch, range(3)), until=3)]
    assert all(report.is_finite for report in reports)
    for each in (network, state.validation_network):
        pixels = make_batch(4).image
        with torch.no_grad():
            scored = forward(each.eval(), PIXELS, pixels).float()
        found = TorchBackend(each, PIXELS, CPU)(pixels)
        torch.testing.assert_close(found, scored, rtol=1e-4, atol=1e-4)
    assert {*Network.seen} == {expected}
