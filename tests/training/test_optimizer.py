"""AdamW without torch._dynamo is torch's AdamW."""

from __future__ import annotations

import copy
import sys
from functools import wraps

import pytest
import torch

from tests.tiny import make_network
from unet_ddp.training.optimizer import AdamW, _unwrapped


def test_it_is_torchs_and_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    network, other = make_network(), make_network()
    theirs = torch.optim.AdamW(other.parameters(), lr=0.1, weight_decay=0.3, fused=True)
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    for _ in range(3):
        other(images).square().sum().backward()
        theirs.step()
        theirs.zero_grad()
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import of it would fail
    ours = AdamW(network.parameters(), lr=0.1, weight_decay=0.3, fused=True)
    for _ in range(3):
        network(images).square().sum().backward()
        ours.step()
        ours.zero_grad()
    ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    ours.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
    assert [len(group["params"]) for group in ours.param_groups] == [5, 1]
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(ours.state[one]["exp_avg_sq"], theirs.state[two]["exp_avg_sq"])


def test_only_what_torch_has_wrapped_is_unwrapped() -> None:
    """Another version of torch may leave a method as it is."""

    def method() -> None: ...

    assert _unwrapped(wraps(method)(lambda: None)) is method
    assert _unwrapped(method) is method
