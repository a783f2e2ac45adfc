"""torch.compile for training: the same weights, in code generated for their shapes."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections import Counter
from typing import cast

import torch
from torch import nn

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError

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


def describe_uncompiled() -> list[str]:
    """Return a line about what torch.compile has left uncompiled in this process; none if nothing.

    By torch's counters, which are private: of a torch without them nothing is known.
    """
    try:
        from torch._dynamo.utils import counters
    except ImportError:
        return []
    breaks = Counter[str]()
    for kind in ("graph_break", "unimplemented"):
        for reason, count in counters[kind].items():
            breaks[reason.split("\n")[0]] += count
    failed = counters["frames"]["total"] - counters["frames"]["ok"]
    if not breaks and not failed:
        return []
    often = "".join(f", most often: {reason}" for reason, _ in breaks.most_common(1))
    return [
        f"compile: {breaks.total()} graph break(s), {failed} function(s) that failed{often}; these "
        "parts run uncompiled"
    ]
