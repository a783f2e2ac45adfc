"""Networks of the user's own with tensors of other types, sizes or gradients than those of a usual one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.tiny import CPU, PIXELS, make_batch, make_state
from unet_ddp.errors import UserError
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


def kept(network: Any, features: Tensor) -> Any:
    return network.kept(features)


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


class Cache(nn.Module):
    """Weighs columns by a constant that is made again for wider images."""

    def __init__(self) -> None:
        super().__init__()
        self.make(2)

    def make(self, width: int) -> None:
        self.width = torch.tensor(width)
        weights = torch.linspace(1, 2, 64)[:width]
        self.register_buffer("weights", weights, persistent=False)

    @property
    def size(self) -> int:
        return len(self.weights)  # type: ignore[arg-type]

    def forward(self, features: Tensor) -> Tensor:
        if features.shape[-1] > self.size:
            self.make(features.shape[-1])
        return features * self.weights[: features.shape[-1]]  # type: ignore[index]


class ByNumber(Cache):
    """Keeps its size as a number, which is saved; the constant is not."""

    number = 0

    def make(self, width: int) -> None:
        super().make(width)
        self.number = width

    @property
    def size(self) -> int:
        return self.number


def test_a_constant_that_grows_with_the_images_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    network = try_own(monkeypatch, lambda n: Cache(), kept)
    assert network.kept.size == 2  # the trial leaves all as it was
    state = make_state(network, ema=0.9, has_own_buffers=True)
    batches = (make_batch(number, width=8 + 4 * number) for number in range(3))
    assert all(report.is_finite for report in train_steps(state, batches, until=3))
    assert network.kept.size == 16


def test_a_number_of_a_constant_that_is_not_saved_is_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A resumed run would have the number, and the constant of a new network."""
    with pytest.raises(UserError, match=r"built again with .* fails .*: use the tensor's own size"):
        try_own(monkeypatch, lambda n: ByNumber(), kept)


@pytest.mark.parametrize(
    ("kind", "momentum"),
    [
        (nn.BatchNorm2d, 0.1),
        (nn.BatchNorm2d, 0.0),
        (nn.BatchNorm2d, None),
        (nn.InstanceNorm2d, 0.1),
    ],
)
def test_norms_that_count_no_batches_are_taken(
    kind: type[Any], momentum: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their averages are torch's, and a state dict fits a new network."""

    def make() -> Any:
        norm = kind(4, momentum=momentum, track_running_stats=True)
        norm.num_batches_tracked = None
        return norm

    network = try_own(monkeypatch, lambda n: make(), kept)
    expected, features = make(), torch.randn(2, 4, 8, 8)
    expected(features)
    network.kept(features)
    torch.testing.assert_close(network.kept.running_mean, expected.running_mean)
    assert all(
        report.is_finite
        for report in train_steps(make_state(network), map(make_batch, range(2)), until=2)
    )
    build().load_state_dict(dict(network.state_dict()))


@pytest.mark.parametrize(
    ("keep", "look_up"),
    [
        (lambda: nn.Embedding(2, 4, sparse=True), lambda kept, ids: kept(ids)),
        (lambda: nn.Embedding(2, 4), lambda kept, ids: F.embedding(ids, kept.weight, sparse=True)),
    ],
)
def test_a_sparse_gradient_is_a_line(
    keep: Function, look_up: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.zeros(1, dtype=torch.long)
    with pytest.raises(
        UserError, match=r"gradient of kept.weight is sparse.*leave out sparse=True"
    ):
        try_own(
            monkeypatch,
            lambda n: keep(),
            lambda n, features: features + look_up(n.kept, ids)[:, :, None, None],
        )
