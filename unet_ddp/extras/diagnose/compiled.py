"""torch.compile for training: the same weights, in code generated for their shapes."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of

# Per device: language, environment variable, usual commands (the GPU's is for triton).
_COMPILERS = {
    "cpu": ("C++", "CXX", "g++", "clang++", "c++"),
    "cuda": ("C", "CC", "gcc", "clang", "cc"),
}


def compile_network(network: nn.Module, loss: nn.Module, world: World) -> nn.Module:
    """Return `network` wrapped, to be compiled at its first call for the image size there.

    The wrapper shares the weights: `network` and its state dict stay as they are. `network` may be
    DDP's replica, whose gradients still travel while others are computed. `loss` is compiled in
    place: one pass over the pixels instead of twenty.

    Raises:
        UserError: this machine has no compiler.
    """
    device = world.device
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise UserError("--compile: triton is not installed; pip install triton, or leave it out")
    language, variable, *names = _COMPILERS[device.type]
    if not any(map(shutil.which, (os.environ.get(variable, ""), *names))):
        raise UserError(
            f"--compile: no {language} compiler ({names[0]} or {names[1]}) on this machine; "
            "install one, or leave the flag out"
        )
    # Its warnings about a missing GPU appear wherever CUDA's compiler is installed.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    if device.type == "cuda" and world.size > 1:  # batch norm's collectives are not made for it
        from torch import _dynamo

        _dynamo.config.suppress_errors = True  # what does not compile runs as it is
    loss.compile(dynamic=False)
    return cast(nn.Module, torch.compile(network, dynamic=False))


def log_uncompiled(log: Callable[[str], None]) -> None:
    """Log a line if torch.compile has left something uncompiled in this process, by torch's counters."""
    from torch._dynamo.utils import counters

    breaks = counters["graph_break"].total()
    failed = counters["frames"]["total"] - counters["frames"]["ok"]
    if breaks or failed:
        log(
            f"compile: {count_of(breaks, 'graph break')}, {count_of(failed, 'function')} that failed; these parts run "
            "uncompiled: TORCH_LOGS=graph_breaks shows them"
        )
