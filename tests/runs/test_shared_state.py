"""What all processes of a run have alike is read so that each change of it shows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unet_ddp.runs.shared_state import find_difference, read_shared

CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "half": lambda tensor: tensor.mul_(0.5),
    "sign": lambda tensor: tensor.neg_(),
    "one": lambda tensor: tensor.data[0].add_(1),
}


def make_state(form: torch.memory_format, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 2)).to(dtype)
    network[0].to(memory_format=form)
    network.register_buffer("negative", torch._neg_view(torch.rand(4)))
    network.register_buffer("odd", torch.rand(9)[1:4])
    optimizer = torch.optim.AdamW(network.parameters())
    network[1](network[0](torch.rand(1, 8, 8, 8, dtype=dtype))).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["note"] = float("nan")
    precision = SimpleNamespace(device=torch.device("cpu"))
    parts = {"network": network, "loss": nn.Module(), "average": None, "optimizer": optimizer}
    return SimpleNamespace(**parts, schedule=None, precision=precision)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_change_of_each_tensor_shows(
    change: str, form: torch.memory_format, dtype: torch.dtype
) -> None:
    with torch.enable_grad():
        state = make_state(form, dtype)
    momentum = state.optimizer.state[state.network[0].weight]["exp_avg"]
    for name, tensor in {
        "network.0.weight": state.network[0].weight,
        "network.1.bias": state.network[1].bias,
        "network.negative": state.network.negative,
        "network.odd": state.network.odd,
        "optimizer.state[0]['exp_avg']": momentum,
    }.items():
        before = read_shared(state)
        assert find_difference(before, read_shared(state)) is None
        CHANGES[change](tensor)
        assert find_difference(before, read_shared(state)) == name
