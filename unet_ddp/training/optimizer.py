"""torch's AdamW without what only compiling an optimizer needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


def _plain(method: Callable[..., Any]) -> Any:
    """A method without torch's wrapper, where it has one."""
    return getattr(method, "__wrapped__", method)


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW``, whose every method imports torch._dynamo at its first call.

    That takes as long as importing torch itself, at each start and on every rank, and tells
    torch.compile where to leave an optimizer alone that is never given to it here.
    """

    add_param_group = _plain(Optimizer.add_param_group)
    state_dict = _plain(Optimizer.state_dict)
    load_state_dict = _plain(Optimizer.load_state_dict)
    zero_grad = _plain(Optimizer.zero_grad)
    step = torch.no_grad()(_plain(torch.optim.AdamW.step))
