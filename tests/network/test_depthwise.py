"""Depthwise convolutions in bfloat16 training: those that are slow in it compute in float32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from unet_ddp.network.depthwise import train_depthwise_in_float32


def gradient(layer: nn.Module, images: torch.Tensor, *, amp: bool) -> torch.Tensor:
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        out = layer(images)
    out.float().square().sum().backward()
    weight: Any = layer.weight
    return weight.grad.clone()


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"kernel_size": 5, "groups": 4, "padding": 2}, True),
        ({"kernel_size": 3, "groups": 4, "stride": 2}, True),
        ({"kernel_size": 3, "groups": 4}, False),
        ({"kernel_size": 5, "groups": 2, "stride": 2}, False),
        ({"kernel_size": 5, "stride": 2}, False),
    ],
)
def test_the_slow_ones_train_in_float32(settings: dict[str, Any], changes: bool) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 4, 9, 9)
    plain = nn.Sequential(nn.Conv2d(4, 4, **settings))
    network = copy.deepcopy(plain)
    train_depthwise_in_float32(network)
    layer = copy.deepcopy(network)[0]  # as the average of the weights is
    assert isinstance(layer, nn.Conv2d) and (type(layer) is nn.Conv2d) != changes
    assert network.state_dict().keys() == plain.state_dict().keys()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(images), plain[0](images))  # scores stay as they were
    exact, plain_half = (gradient(plain[0], images, amp=amp) for amp in (False, True))
    assert not torch.equal(exact, plain_half)
    assert torch.equal(gradient(layer, images, amp=True), exact if changes else plain_half)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(images.bfloat16()).dtype == torch.bfloat16  # as the next layer takes it
