"""torch.compile for training: the same weights, in code generated for their shapes."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import torch
from torch import nn

from unet_ddp.distributed.failures import damaged_cache
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of
from unet_ddp.files import check_writable, temporary_folder

# Per device: language, environment variable, usual commands (the GPU's is for triton).
_COMPILERS = {
    "cpu": ("C++", "CXX", "g++", "clang++", "c++"),
    "cuda": ("C", "CC", "gcc", "clang", "cc"),
}
_WRITING = 5  # seconds in which a linker has written a file
_BINARIES = (".so", ".cubin", ".o")
_ELF64 = b"\x7fELF\x02"
_HEADER = struct.Struct(
    "<5s27xQQ6xHHHH2x"
)  # tables of segments and sections: their places, steps and counts


def compile_network(network: nn.Module, loss: nn.Module, world: World) -> nn.Module:
    """Return `network` wrapped, to be compiled at its first call for the image size there.

    The wrapper shares the weights: `network` and its state dict stay as they are. `network` may be
    DDP's replica, whose gradients still travel while others are computed. `loss` is compiled in
    place: one pass over the pixels instead of twenty.

    Raises:
        UserError: this machine has no compiler, or torch's cache can't be used.
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
    check_code_cache()
    # Its warnings about a missing GPU appear wherever CUDA's compiler is installed.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    if device.type == "cuda" and world.size > 1:  # batch norm's collectives are not made for it
        from torch import _dynamo

        _dynamo.config.suppress_errors = True  # what does not compile runs as it is
    loss.compile(dynamic=False)
    return cast(nn.Module, torch.compile(network, dynamic=False))


def check_code_cache() -> None:
    """Check the code that torch has compiled before, on this machine.

    A kill may have cut a file there: torch would fail at each start, or the process end by SIGBUS.

    Raises:
        UserError: a file is cut, or the folder can't be written to.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    temporary_folder()
    with suppress(OSError):  # `check_writable` says what is wrong
        cache_dir()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    check_writable(folder, "TORCHINDUCTOR_CACHE_DIR")
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process removes it
            if path.suffix in _BINARIES and _stays_cut(path):
                raise UserError(f"{path}: is cut, as by a kill: {damaged_cache(folder)}")


def _stays_cut(path: Path) -> bool:
    """Return whether a file is cut, and not being written by another process."""
    until = time.monotonic() + _WRITING
    while _is_cut(path):
        if time.time() - path.stat().st_mtime > _WRITING or time.monotonic() > until:
            return True
        time.sleep(0.1)
    return False


def _is_cut(path: Path) -> bool:
    """Return whether a file is empty, or shorter than the tables that its ELF header names."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return True
    kind, first, second, step, count, step_2, count_2 = _HEADER.unpack(head)
    if kind != _ELF64:  # of another system
        return False
    ends = first + step * count, second + step_2 * count_2
    return size < int(max(ends))


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
