"""State of parts of the user's own that no checkpoint has: tensors, lists, objects; a trial leaves all as it was."""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from types import CellType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from unet_ddp.errors import UserError, shorten
from unet_ddp.network.state_dicts import is_whole
from unet_ddp.plugins.own import is_installed
from unet_ddp.training.own_holders import OF_TORCH, holders

_CONTAINERS = (list, dict, set, deque)  # exactly these: a module's own dicts are ordered ones
_TYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
_CLOSE = 1e-5  # of a number: a GPU adds in any order
_MOST = 2**24  # elements: a module may have its images in memory


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
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
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


def read_unsaved(part: object) -> dict[str, list[object]]:
    """Return what a part keeps and no checkpoint has, by its places: flat, and tensors by their shapes and norms.

    Its plain numbers are saved, and not among it. What its classes, its module and their functions keep is.
    """
    found: dict[str, list[object]] = {}
    shared: dict[Any, str] = {}  # names of classes, functions and modules
    for path, holder in holders(part):
        attributes = dict(vars(holder))
        for name in attributes.get("_non_persistent_buffers_set", ()):
            attributes[name] = attributes["_buffers"][name]
        for name, value in attributes.items():
            if name not in OF_TORCH and not isinstance(value, (bool, int, float)):
                found[f"its {path}.{name}".replace(" .", " ")] = [*_flatten(value)]
        kinds: Sequence[Any] = [holder] if inspect.isfunction(holder) else type(holder).__mro__
        for kind in kinds:
            if _is_users(kind):
                shared[sys.modules[kind.__module__]] = kind.__module__
            # Also a class that is made of the user's: type(self) is that one.
            if _is_users(kind) or any(map(_is_users, getattr(kind, "__bases__", ()))):
                shared[kind] = kind.__name__
    for each, place in shared.items():
        for name, value in vars(each).items():
            if not name.startswith("__"):  # Python's own
                found.setdefault(f"{place}.{name}", []).extend(_flatten(value))
    return found


def _is_users(kind: object) -> bool:
    """Return whether a class or function is of a file of the user's own."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_installed(file)


def _flatten(value: object, depth: int = 5) -> Iterator[object]:
    """Yield the plain values in containers, and in attributes of the user's objects; objects in those are left out."""
    if isinstance(value, Tensor) and not is_lazy(value):  # a lazy one has no shape
        is_odd = value.layout != torch.strided or value.is_quantized or value.is_meta
        is_read = not is_odd and value.numel() <= _MOST
        kind = torch.complex128 if value.is_complex() else torch.float64
        norm = torch.linalg.vector_norm(value.detach().to(kind)) if is_read else 0
        yield tuple(value.shape), float(norm)
    elif isinstance(value, np.ndarray):
        is_read = value.dtype.kind in "biufc" and value.size <= _MOST
        yield value.shape, float(np.linalg.norm(value.astype(np.complex128))) if is_read else 0.0
    elif isinstance(value, (set, frozenset)):
        yield frozenset(value)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        yield value
    elif depth > 0:
        inner: Iterable[object] = ()
        if isinstance(value, (list, tuple, deque)):
            inner, depth = value, depth - 1
        elif isinstance(value, Mapping):
            inner, depth = chain(*value.items()), depth - 1
        elif hasattr(value, "__dict__") and not isinstance(value, ModuleType):
            inner, depth = _list_inner(value), depth - 3
        for each in [*inner]:
            yield from _flatten(each, depth)


def _list_inner(value: object) -> Iterable[object]:
    """Return the attributes of an object of the user's, or what a function of theirs has at hand."""
    if inspect.isfunction(value):
        defaults = chain(value.__defaults__ or (), (value.__kwdefaults__ or {}).values())
        return chain(defaults, *map(_read_cell, value.__closure__ or ()))
    if isinstance(value, nn.Module):
        return chain(*map(_list_kept, value.modules()))
    is_users = isinstance(value, SimpleNamespace) or _is_users(type(value))
    return chain(*vars(value).items()) if is_users else ()


def _read_cell(cell: CellType) -> Iterator[object]:
    with suppress(ValueError):  # a name that has no value yet
        yield cell.cell_contents


def _list_kept(module: nn.Module) -> Iterator[object]:
    """Yield tensors of a module that may be in no state dict, as in a list, and its other attributes if it is the user's."""
    yield from module.parameters(recurse=False)
    # In training a batch norm does not read them.
    if not (module.training and isinstance(module, _BatchNorm)):
        yield from module.buffers(recurse=False)
    if _is_users(type(module)):
        yield from (value for name, value in vars(module).items() if name not in OF_TORCH)


def find_changed(before: Mapping[str, list[object]], after: Mapping[str, list[object]]) -> str:
    """Return the first place of `read_unsaved` whose values differ; empty if there is none."""
    for place in {**before, **after}:
        old, new = before.get(place, []), after.get(place, [])
        if len(old) != len(new) or not all(map(_is_alike, old, new)):
            return place
    return ""


def _is_alike(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):  # of an array: its shape and norm
        return one[0] == other[0] and _is_alike(one[1], other[1])
    if isinstance(one, (float, np.floating)) and isinstance(other, (float, np.floating)):
        return math.isclose(one, other, rel_tol=_CLOSE) or (math.isnan(one) and math.isnan(other))
    return bool(one == other) or str(one) == str(other) == "NaT"  # numpy's, which is not itself


def _copy_values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    copies: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, Tensor):
            copies[name] = value.detach().clone()
        elif type(value) in _CONTAINERS and name not in OF_TORCH:
            copies[name] = value.copy()
    return copies


@torch.no_grad()
def _write_back(value: Any, before: Any) -> None:
    if isinstance(value, Tensor):
        # An expanded one can't be written, nor can it have changed.
        if not torch.equal(value, before):
            value.copy_(before)
        return
    value.clear()
    (value.extend if hasattr(value, "extend") else value.update)(before)


def draw_step(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a state dict, with parameters as after a step: what a module has made of the old ones shows."""
    named = module.named_parameters(remove_duplicate=False)
    trained = {name for name, parameter in named if parameter.requires_grad}
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    for name in filter(trained.__contains__, state):
        state[name] *= 1 + torch.rand_like(state[name]) / 10
    return state


def check_unscripted(where: str, part: object) -> None:
    """Check that a part is and has no module of TorchScript.

    Raises:
        UserError: it is or has one.
    """
    if any(isinstance(holder, torch.jit.ScriptModule) for _, holder in holders(part)):
        raise UserError(
            f"{where}: is or has a module of TorchScript; use the nn.Module that it was made of, and --compile "
            "for speed"
        )


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
