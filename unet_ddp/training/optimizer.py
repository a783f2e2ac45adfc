"""AdamW without the imports that only torch.compile needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def _unwrapped(method: Callable[..., Any]) -> Any:
    return getattr(method, "__wrapped__", method)


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW``, whose methods import torch._dynamo at their first call.

    That takes 1.5 to 1.6 s at each start and on every rank where importing torch takes 1.8 s, and
    tells torch.compile to leave an optimizer alone that is never given to it here.
    """

    add_param_group = _unwrapped(Optimizer.add_param_group)
    state_dict = _unwrapped(Optimizer.state_dict)
    load_state_dict = _unwrapped(Optimizer.load_state_dict)
    zero_grad = _unwrapped(Optimizer.zero_grad)
    step = torch.no_grad()(_unwrapped(torch.optim.AdamW.step))
