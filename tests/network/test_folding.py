"""Batch norm folded into convolutions: the same function with fewer layers, or left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.prediction.models import lively_network
from unet_ddp.network.folding import fold_batchnorm


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize(
    ("model", "encoder"),
    [("unet", None), ("unet", "resnet18"), ("fpn", "tu-mobilenetv3_small_050")],
)
def test_folded_batch_norm_is_the_same_function(model: str, encoder: str | None) -> None:
    """Of encoders too, whose layers are no sequence; timm's batch norm has its activation inside."""
    network = lively_network(model, encoder)
    before = norms(network)
    folded = fold_batchnorm(network, 3)
    assert norms(network) == before > norms(folded) == 0
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected, found = network(images), folded(images)
    assert (expected - found).abs().max() < 1e-4 * max(1, float(expected.abs().max()))
    weight = next(p for p in folded.parameters() if p.ndim == 4 and p.shape[1] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last)


class Shared(nn.Module):
    """A convolution whose output is used twice, or that is applied twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        assert self.norm.running_var is not None
        self.norm.running_var.fill_(4)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images)
        if self.kind == "output":
            return features + self.norm(features)
        if self.kind == "weight":
            return self.conv(self.norm(features))
        if self.kind == "norm":
            return self.norm(self.norm(features))
        if images.shape[-1] < 32:
            raise AssertionError("made for one size")
        return self.norm(features)


@pytest.mark.parametrize("kind", ["output", "weight", "norm", "size"])
def test_what_is_used_twice_and_what_can_not_be_seen_is_left(kind: str) -> None:
    network = Shared(kind).eval().to(memory_format=torch.channels_last)  # other kernels, as folded
    folded = fold_batchnorm(network, 3)
    images = torch.randn(1, 3, 32, 32)
    assert norms(folded) == 1 and torch.equal(folded(images), network(images))


class Own(nn.Module):
    """A network as users write it, with a batch norm that changes much."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Conv2d(4, 2, 1)
        fill(self.norm)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(images))))


def fill(norm: nn.BatchNorm2d) -> None:
    assert norm.running_var is not None and norm.running_mean is not None
    norm.running_var.fill_(4)
    norm.running_mean.copy_(torch.arange(4))
    with torch.no_grad():
        norm.weight.copy_(torch.arange(1, 5))
        norm.bias.fill_(-1)


class Alias(Own):
    """Layers under two names, as in a list of an encoder's children."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(self.conv, self.norm)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(images)))


class PlainList(Own):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [self.conv, self.norm]

    def forward(self, images: Tensor) -> Tensor:
        for step in self.steps:
            images = step(images)
        return self.head(torch.relu(images))


class WithoutBias(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:  # torch's own name
        return F.conv2d(input, self.weight, None, padding=1)


class BatchNorm2d(nn.BatchNorm2d):
    """Of torch's name, with an activation."""

    def forward(self, input: Tensor) -> Tensor:
        return F.leaky_relu(super().forward(input))


class OwnConvolution(Own):
    def __init__(self) -> None:
        super().__init__()
        self.conv = WithoutBias(3, 4, 3, bias=False)


class OwnNorm(Own):
    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm2d(4)
        fill(self.norm)


class Hooked(Own):
    def __init__(self) -> None:
        super().__init__()
        self.norm.register_forward_hook(lambda module, given, output: output * 3)
        self.conv.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


class Remembers(Own):
    """The usual dictionary of activations, which a copy's hook does not write to."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = kept = dict[str, Tensor]()
        self.norm.register_forward_hook(lambda module, given, output: kept.update(norm=output))

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + self.kept["norm"].mean()


class OldSpectralNorm(Own):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.spectral_norm(self.conv)


class ReadsWeights(Own):
    """As attention by a norm's weights does."""

    def forward(self, images: Tensor) -> Tensor:
        scale = self.norm.weight.abs() / self.norm.weight.abs().sum()
        return self.head(self.norm(self.conv(images)) * scale.view(1, -1, 1, 1))


class ByFunction(Own):
    def forward(self, images: Tensor) -> Tensor:
        norm, features = self.norm, self.conv(images)
        found = F.batch_norm(features, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        return self.head(torch.relu(found))


class TrainReturnsNothing(Own):
    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


OWN = [
    Own, Alias, PlainList, OwnConvolution, OwnNorm, Hooked, Remembers, OldSpectralNorm, ReadsWeights, ByFunction,
    TrainReturnsNothing,
]  # fmt: skip


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("was_run", [False, True])
def test_a_user_s_own_network_computes_as_before(kind: type[Own], was_run: bool) -> None:
    network = kind()
    network.eval()
    images = torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        if was_run:  # a hook may have kept what a copy would read
            network(images + 1)
        expected = network(images)
        folded = fold_batchnorm(network, 3)
        assert not folded.training
        torch.testing.assert_close(folded(images), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(network(images), expected, rtol=0, atol=1e-4)
    is_folded = norms(folded) == 0
    assert is_folded == (kind in (Own, Alias, PlainList, TrainReturnsNothing))
