"""Single passes of a network: which parameters it uses, without a trace in its state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn


def freeze_unused(network: nn.Module, example: Tensor) -> None:
    """Freeze parameters that no output depends on (some of smp's encoders have them).

    DDP would wait forever for their gradients.
    """
    pass_once(network, example)
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.grad is not None)
    network.zero_grad(set_to_none=True)


@contextlib.contextmanager
def silent_stderr() -> Iterator[None]:
    """Send to nowhere what torch's C++ code writes to the file of stderr."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it may be closed
            kept = os.dup(2)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 2)
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), 2)
        yield


def pass_once(module: nn.Module, example: Tensor) -> None:
    """Compute gradients for `example`, and leave the buffers, and numbers that modules count by, as they were."""
    buffers = [
        (part._buffers, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    numbers = [(part, name, value) for part in module.modules() for name, value in vars(part).items()
               if isinstance(value, (int, float))]  # fmt: skip
    module(example).sum().backward()
    with torch.no_grad():
        for held, name, buffer, old in buffers:
            buffer.copy_(old)
            held[name] = buffer  # a pass may have assigned another
    for part, name, value in numbers:
        vars(part)[name] = value
