"""torch.compile, for training: the same weights in code made for their shapes."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from typing import cast

import torch
from torch import nn

from unet_ddp.errors import UserError

# Of what language, the variable that names one, and what is looked for; a GPU's is triton's.
_COMPILERS = {
    "cpu": ("C++", "CXX", "g++", "clang++", "c++"),
    "cuda": ("C", "CC", "gcc", "clang", "cc"),
}


def compile_network(network: nn.Module, device: torch.device) -> nn.Module:
    """`network`, compiled at its first call for the size of the images there.

    A wrapper that shares its weights: `network` itself, and what is saved of it, stay as they are.
    It may be DDP's replica, whose gradients then still travel while others are computed.

    Raises:
        UserError: there is nothing on this machine to compile with.
    """
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise UserError("--compile: triton is not installed; pip install triton, or leave it out")
    language, variable, *names = _COMPILERS[device.type]
    if not any(map(shutil.which, (os.environ.get(variable, ""), *names))):
        raise UserError(
            f"--compile: no {language} compiler ({names[0]} or {names[1]}) on this machine; install one, or "
            "leave the flag out"
        )
    # It tells of a missing GPU wherever CUDA's compiler is installed.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    return cast(nn.Module, torch.compile(network, dynamic=False))
