"""The defaults of torch, which a script or a notebook may have changed before it calls this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def usual_defaults() -> Iterator[None]:
    """Context in which new tensors are float32 on the CPU and gradients are on; afterwards all is as it was."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as stack:
            if device.type != "cpu":
                stack.enter_context(torch.device("cpu"))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            yield
    finally:
        torch.set_default_dtype(dtype)
