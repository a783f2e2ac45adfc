"""Graphs that a test has traced before: torch takes five seconds for each, and eleven for a process's first.

A graph is taken from a file if all that decides it is equal: classes, attributes and weights of the module, and
the examples. Modules of tests are always traced.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unet_ddp.extras.onnx.tracing import trace

KNOWN = ("torch.", "unet_ddp.")


def trace_once(
    folder: Path, module: nn.Module, examples: Sequence[Tensor], *args: Any, **how: Any
) -> Any:
    """Return the ONNX model of a module as `trace` does, if need be by it."""
    if not all(type(each).__module__.startswith(KNOWN) for each in module.modules()):
        return trace(module, examples, *args, **how)
    shapes = [(each.shape, each.dtype) for each in examples]
    key = hashlib.sha256(repr((shapes, args, how)).encode())
    for part in describe(module):
        key.update(part)
    path = folder / f"{key.hexdigest()}.onnx"
    if not path.exists():
        model = trace(module, examples, *args, **how)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(model.SerializeToString())
        temporary.replace(path)
    from onnx import ModelProto

    return ModelProto.FromString(path.read_bytes())


def describe(module: nn.Module) -> Iterator[bytes]:
    """Yield what decides the graph of a module."""
    for name, each in module.named_modules():
        plain = {key: value for key, value in vars(each).items() if not key.startswith("_")}
        if "head" in plain:  # an object whose repr is its address
            plain["head"] = (type(each.head), vars(each.head))
        text = repr((name, type(each), each.extra_repr(), sorted(plain.items())))
        assert " at 0x" not in text, text
        yield text.encode()
    for name, tensor in module.state_dict().items():
        yield repr((name, tensor.dtype, tensor.shape)).encode()
        yield tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
