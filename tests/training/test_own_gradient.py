"""A network or a loss of the user's own whose gradient goes where nothing trains, or which returns probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from unet_ddp.config import OptimizationConfig
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.own_loss import try_loss
from unet_ddp.training.own_network import try_network


class Network(nn.Module):
    """A network that adds something to a plain one; `keep` says what it keeps, `change` what it returns."""

    stride = 2
    keep: Any = staticmethod(lambda channels: None)
    change: Any = staticmethod(lambda logits, network: logits)

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Conv2d(4, num_classes, 1)
        self.kept = self.keep(num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.change(self.head(self.body(images).relu()), self)  # type: ignore[no-any-return]


class Loss(nn.Module):
    """A loss with what a network keeps."""

    keep: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.kept = self.keep(2)

    def forward(self, logits: Tensor, masks: Tensor) -> Tensor:
        return F.cross_entropy(use(logits, self), masks, ignore_index=255)


def try_both(monkeypatch: pytest.MonkeyPatch, keep: Any) -> None:
    monkeypatch.setattr(Network, "keep", staticmethod(keep))
    monkeypatch.setattr(Network, "change", staticmethod(use))
    monkeypatch.setattr(Loss, "keep", staticmethod(keep))
    said = []
    for trial in (try_own_network, try_own_loss):
        try:
            trial()
        except UserError as error:
            said.append(str(error))
    assert len(said) in (0, 2), said  # of both, or of none
    if said:
        raise UserError(" ".join(said))


def try_own_network() -> None:
    architecture = choose_architecture(f"{__name__}:Network", None, channels=3, num_classes=2)
    torch.manual_seed(0)
    network = build_network(architecture)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    try_network("Network", network, lambda: build_network(architecture), torch.rand(2, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training and all(each.grad is None for each in network.parameters())


def try_own_loss() -> None:
    loss = SegmentationLoss(OptimizationConfig(loss=f"{__name__}:Loss+ce"))
    try_loss(loss, 2, torch.device("cpu"))


def use(logits: Tensor, part: Any) -> Any:
    """Return logits that depend on what `part` keeps."""
    kept = part.kept
    while isinstance(kept, (list, tuple, dict)):
        (kept,) = kept.values() if isinstance(kept, dict) else kept
    return logits + kept(logits) if callable(kept) else logits * kept


def zero_conv(channels: int) -> nn.Module:
    conv = nn.Conv2d(channels, channels, 1)
    nn.init.zeros_(conv.weight)
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


def fixed(channels: int) -> nn.Module:
    return zero_conv(channels).requires_grad_(False)


def gain(channels: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(1, channels, 1, 1))


OUTSIDE = torch.ones(1, requires_grad=True)


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (lambda c: [gain(c)], "kept"),
        (lambda c: (gain(c),), "kept"),
        (lambda c: {"a": [gain(c)]}, "kept"),
        (lambda c: torch.ones(1, requires_grad=True), "kept"),
        (lambda c: nn.Buffer(torch.ones(1, requires_grad=True)), "kept"),
        (lambda c: [zero_conv(c)], "kept"),
        (lambda c: lambda logits: logits * OUTSIDE, r"a tensor \(1,\) outside"),
    ],
)
def test_what_needs_a_gradient_and_is_no_parameter_is_a_line(
    keep: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"nothing would train {name} of .*, which is no parameter .*nn.ParameterList"
    with pytest.raises(UserError, match=f"--model Network: {said}.* --loss .*: {said}"):
        try_both(monkeypatch, keep)
    assert OUTSIDE.grad is None


@pytest.mark.parametrize(
    "keep",
    [
        gain,
        zero_conv,
        lambda c: [fixed(c)],
        lambda c: [torch.ones(1)],
        lambda c: lambda logits: logits * torch.ones(1, requires_grad=True),  # made anew
    ],
)
def test_parameters_and_constants_are_taken(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    try_both(monkeypatch, keep)


@pytest.mark.filterwarnings("ignore:.*use_reentrant")
def test_a_tensor_for_the_sake_of_checkpointing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of the old kind need an input with a gradient, which they do not use."""

    def change(logits: Tensor, network: Any) -> Any:
        return checkpoint(lambda x, _: x * 1, logits, network.kept, use_reentrant=True)

    monkeypatch.setattr(Network, "keep", staticmethod(lambda c: torch.ones(1, requires_grad=True)))
    monkeypatch.setattr(Network, "change", staticmethod(change))
    try_own_network()


def two_of_one(logits: Tensor, network: Any) -> Tensor:
    share = logits[:, :1].sigmoid()
    return torch.cat([1 - share, share], 1)


def resized(logits: Tensor, network: Any) -> Tensor:
    half = F.avg_pool2d(logits, 2).softmax(1)
    return F.interpolate(half, scale_factor=2, mode="bicubic")


def resized_sigmoid(logits: Tensor, network: Any) -> Tensor:
    half = F.avg_pool2d(logits, 2).sigmoid()
    return F.interpolate(half, scale_factor=2, mode="bicubic")


def by_hand(logits: Tensor) -> Tensor:
    shares = logits.exp()
    return shares / shares.sum(1, keepdim=True)


PROBABILITIES: dict[str, Any] = {
    "softmax": lambda x, _: x.softmax(1),
    "sigmoid": lambda x, _: x.sigmoid(),
    "two of one": two_of_one,
    "permuted": lambda x, _: x.permute(0, 2, 3, 1).softmax(-1).permute(0, 3, 1, 2),
    "resized": resized,
    "mean": lambda x, _: (x.softmax(1) + (x / 2).softmax(1)) / 2,
    "times": lambda x, _: x.softmax(1) * 1.0,
    "clamped": lambda x, _: x.sigmoid().clamp(1e-4, 1 - 1e-4),
    "hard": lambda x, _: F.hardsigmoid(x),
    "by hand": lambda x, _: by_hand(x),
    "overflowing": lambda x, _: by_hand(20 * x),
    "a little more": lambda x, _: x.sigmoid() + 1e-6,
    "never 0": lambda x, _: x.softmax(1) * 0.99 + 0.01,
    "resized sigmoid": resized_sigmoid,
}


@pytest.mark.parametrize("when", ["always", "training", "prediction"])
@pytest.mark.parametrize("kind", PROBABILITIES)
def test_probabilities_are_a_line(kind: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way they were computed, and though one of the modes returns logits."""

    def change(logits: Tensor, network: nn.Module) -> Any:
        if when != "always" and network.training != (when == "training"):
            return logits
        return PROBABILITIES[kind](logits, network)

    monkeypatch.setattr(Network, "change", staticmethod(change))
    with pytest.raises(UserError, match=r"--model Network: .*returns probabilities.*logits"):
        try_own_network()


def emptied(logits: Tensor, network: Any) -> Any:
    """Return logits that are 0 in a new network."""
    return logits * network.kept


@pytest.mark.parametrize(
    "change",
    [
        lambda x, _: x,
        emptied,
        lambda x, _: x.relu(),
        lambda x, _: x.tanh(),
        lambda x, _: x.log_softmax(1),
        lambda x, _: F.softplus(x),
        lambda x, _: x.clamp(-5, 5),
        lambda x, _: x / 1000,
        lambda x, _: torch.cat([-x[:, :1], x[:, :1]], 1),
        lambda x, _: x.clamp(0, 1),
        lambda x, _: F.relu6(x) / 6,
        lambda x, _: F.normalize(x.relu(), dim=1),
        lambda x, _: x + 0.5,
        lambda x, network: x * network.kept.sqrt(),  # nan with the other sign
    ],
)
def test_logits_are_taken(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of 0 to 1 at first, of one sign or within bounds."""
    keep = staticmethod(lambda c: nn.Parameter(torch.zeros(1)))
    monkeypatch.setattr(Network, "keep", keep)
    monkeypatch.setattr(Network, "change", staticmethod(change))
    try_own_network()


class Scale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((channels, 1, 1), 10.0))

    def forward(self, images: Tensor) -> Tensor:
        return images * self.factor


LAYERS: dict[str, Any] = {
    "scale": Scale,
    "pixels": lambda c: nn.Conv2d(c, c, 1, bias=False),
    "refined": lambda c: nn.Conv2d(c, c, 3, padding=1, bias=False),
    "resized": lambda c: nn.Sequential(nn.AvgPool2d(2), nn.ConvTranspose2d(c, c, 2, 2, bias=False)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_without_bias_after_a_head_of_zeros_is_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the weights of the last layer, all logits of the new network are 0."""
    keep = staticmethod(lambda c: nn.Sequential(zero_conv(c), LAYERS[name](c)))
    monkeypatch.setattr(Network, "keep", keep)
    monkeypatch.setattr(Network, "change", staticmethod(lambda x, network: network.kept(x)))
    try_own_network()


def drawn(logits: Tensor, network: Any) -> Tensor:
    """Return logits drawn by their own deviation, which large weights make 0 or infinite."""
    deviation = network.kept(logits).exp()
    return torch.distributions.Normal(logits, deviation).rsample() if network.training else logits


def guarded(logits: Tensor, network: Any) -> Tensor:
    if logits.abs().max() > 20:
        raise ValueError("diverged")
    return logits


@pytest.mark.parametrize("shape", [lambda x: x, lambda x: torch.cat([x[:, :1], 1 - x[:, :1]], 1)])
@pytest.mark.parametrize("change", [drawn, guarded])
def test_code_that_refuses_large_weights_is_taken(
    change: Any, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if small ones give what may be probabilities: the weights are as before, and no exception is seen."""
    monkeypatch.setattr(Network, "keep", staticmethod(zero_conv))
    monkeypatch.setattr(Network, "change", staticmethod(lambda x, net: shape(change(x, net) / 9)))
    try_own_network()


@pytest.mark.filterwarnings("ignore:.*use_reentrant")
@pytest.mark.parametrize("is_old", [True, False])
def test_a_gradient_of_the_images_is_taken(is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As checkpoints of the old kind need it: a run's images are other ones in each step."""

    def forward(self: Any, images: Tensor) -> Any:
        images.requires_grad_()
        return self.head(checkpoint(self.body, images, use_reentrant=is_old))

    monkeypatch.setattr(Network, "forward", forward)
    try_own_network()
