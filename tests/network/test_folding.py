"""Batch norm folded into convolutions: the same function with fewer layers, or left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

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
