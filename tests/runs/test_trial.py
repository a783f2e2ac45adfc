"""Parts of the user's own whose state can't be kept are refused before the run has a folder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unet_ddp.errors import UserError
from unet_ddp.runs.trial import refuse_lost_state


class Part(nn.Module):
    """A layer, and what `change` does to it in a pass."""

    def __init__(self, make: Callable[[Any], None], change: Callable[[Any], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        make(self)
        self.change = change


class Extra(Part):
    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def hold(name: str, value: Any, **how: Any) -> Callable[[Any], None]:
    return lambda part: part.register_buffer(name, value.clone(), **how)


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda part: setattr(part, name, value)


def count(part: Any) -> None:
    part.seen += 1


def rebind(part: Any) -> None:
    part.seen = part.seen + 1


def nothing(part: Any) -> None:
    pass


ONE = torch.ones(3)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (nothing, nothing),
        (hold("seen", ONE), count),
        (hold("seen", ONE), rebind),
        (hold("fixed", ONE, persistent=False), nothing),
        (put("fixed", ONE), nothing),
        (put("weight", ONE.clone().requires_grad_() * 2), put("weight", ONE.clone().requires_grad_() * 3)),
        (hold("seen", ONE.double()), count),
        (put("passes", 0), put("passes", 1)),
    ],
    ids=["stateless", "buffer", "rebound", "not persistent", "plain", "computed", "float64", "a number"],
)  # fmt: skip
def test_state_that_is_kept_is_left_as_it_was(make: Any, change: Any) -> None:
    part = Part(make, change)
    before = copy.deepcopy(part.state_dict())
    refuse_lost_state(part, lambda: part.change(part), "--model nets:Part")
    after = part.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in after)


@pytest.mark.parametrize(
    ("kind", "make", "change", "said"),
    [
        (Part, hold("seen", ONE, persistent=False), count, "seen changes in training, and no checkpoint keeps it"),
        (Part, put("seen", ONE.clone()), rebind, "seen changes in training, and no checkpoint keeps it"),
        (Part, hold("seen", ONE), put("seen", torch.ones(3, 1)), r"seen becomes \(3, 1\) of torch.float32, it was \(3,\)"),
        (Part, hold("seen", ONE), put("seen", ONE.double()), "seen becomes .* torch.float64, it was .* torch.float32"),
        (Part, hold("wave", ONE.to(torch.complex64)), nothing, "wave, a tensor of torch.complex64 that checkpoints"),
        (Part, nothing, hold("late", ONE), "its state gets or loses late in training; make all in __init__"),
        (Extra, put("state", {"version": 3}), nothing, "_extra_state, a dict; checkpoints keep tensors"),
    ],
)  # fmt: skip
def test_state_that_is_lost_is_a_line(kind: Any, make: Any, change: Any, said: str) -> None:
    part = kind(make, change)
    with pytest.raises(UserError, match=f"^--model nets:Part: .*{said}"):
        refuse_lost_state(part, lambda: part.change(part), "--model nets:Part")


def test_extra_state_that_is_a_tensor_is_kept() -> None:
    part = Extra(put("state", ONE), nothing)
    refuse_lost_state(part, lambda: None, "--model nets:Part")
    assert isinstance(part.state, Tensor)
