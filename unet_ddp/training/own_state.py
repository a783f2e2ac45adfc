"""State of parts of the user's own besides parameters and buffers: plain numbers, tensors, lists.

A part is a network, a loss or another callable object. Its numbers are saved with the run; a trial leaves all as it was.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unet_ddp.errors import UserError, shorten
from unet_ddp.network.whole_tensors import is_whole

_CONTAINERS = (list, dict, set, deque)  # exactly these: a module's own dicts are ordered ones
_TYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
_OF_TORCH = {*vars(nn.Module()), "training"}  # names


def holders(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each object whose attributes belong to `part`, and its path: modules, or what a callable is made of."""
    if isinstance(part, nn.Module):
        for path, module in part.named_modules(prefix=name):
            yield path, module
            function = vars(module).get("function")  # of a loss that is no module
            if function is not None and getattr(function, "__self__", None) is not module:
                yield from holders(function, path)
    elif isinstance(part, partial):
        for number, each in enumerate((part.func, *part.args, *part.keywords.values())):
            yield from holders(each, f"{name}.{number}")
    elif inspect.ismethod(part):
        yield from holders(part.__self__, name)
    elif hasattr(part, "__dict__") and not inspect.isclass(part):
        yield name, part
        for key, value in vars(part).items():
            if isinstance(value, nn.Module):
                yield from holders(value, f"{name}.{key}")


def modules_of(part: object) -> list[nn.Module]:
    """Return the outermost modules of which a callable object is made, itself if it is one."""
    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for _, holder in holders(part):
        if isinstance(holder, nn.Module) and holder not in inner:
            found.append(holder)
            inner |= {*holder.modules()}
    return found


class Numbers:
    """The plain numbers among the attributes of parts, as a counter of passes; saved where a run has changed them."""

    def __init__(self, parts: Mapping[str, object] | None = None) -> None:
        self._holders = {
            name: vars(each)
            for key in parts or {}
            for name, each in holders((parts or {})[key], key)
        }
        self._first = self.read()

    def read(self) -> dict[str, float]:
        """Return all of them, by their places."""
        found = {}
        for place, attributes in self._holders.items():
            for name, value in attributes.items():
                if isinstance(value, (bool, int, float)) and name not in _OF_TORCH:
                    found[f"{place}:{name}"] = value
        return found

    def state_dict(self) -> dict[str, float]:
        """Return the numbers that differ from a new part's, by their places."""
        changed = {name: n for name, n in self.read().items() if n != self._first.get(name)}
        return {name: float(n) for name, n in changed.items() if abs(n) <= sys.float_info.max}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Restore what `state_dict` returned; a place that is gone is left out."""
        for place, number in {**self._first, **saved}.items():
            name, _, attribute = place.rpartition(":")
            if name in self._holders and isinstance(number, (bool, int, float)):
                kind = type(self._holders[name].get(attribute))
                is_whole_number = kind in (bool, int) and number == int(number)
                self._holders[name][attribute] = kind(number) if is_whole_number else number


@contextmanager
def keeping(*parts: object) -> Iterator[None]:
    """Leave buffers, other tensors, numbers and lists of parts, and random generators, as they were."""
    kept: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    for part in parts:
        for _, holder in holders(part):
            attributes = vars(holder)
            for each in (attributes, attributes.get("_buffers", {})):
                kept.append((each, dict(each), _copy_values(each)))
    state = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(state[0])
            np.random.set_state(state[1])
            for attributes, before, copies in kept:
                attributes.clear()
                attributes.update(before)
                for name, value in copies.items():
                    _write_back(before[name], value)


def _copy_values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    copies: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, Tensor):
            copies[name] = value.detach().clone()
        elif type(value) in _CONTAINERS and name not in _OF_TORCH:
            copies[name] = value.copy()
    return copies


@torch.no_grad()
def _write_back(value: Any, before: Any) -> None:
    if isinstance(value, Tensor):
        if not torch.equal(
            value, before
        ):  # an expanded one can't be written, nor can it have changed
            value.copy_(before)
        return
    value.clear()
    (value.extend if hasattr(value, "extend") else value.update)(before)


def check_saved(where: str, state: Mapping[str, Any]) -> None:
    """Check that a state dict contains only what a checkpoint's reader takes.

    Raises:
        UserError: it does not; `where` says whose it is.
    """
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{where}: its state {name} is {shorten(value)}, and a checkpoint has tensors only; make it "
                f"a buffer; see docs/own_parts.md"
            )
        kind = str(value.dtype).removeprefix("torch.")
        if not is_whole(value) or value.dtype not in _TYPES:
            raise UserError(
                f"{where}: {name} is {kind} {tuple(value.shape)}, which a checkpoint does not take; use plain numbers, "
                f"two for a complex one; see docs/own_parts.md"
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise UserError(
                f"{where}: {name} contains nan or infinity, which ends a run; if it is a constant, register it with "
                "persistent=False"
            )
