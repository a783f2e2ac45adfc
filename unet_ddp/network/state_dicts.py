"""State dicts as checkpoints hold them: whole tensors, and the versions of modules that torch attaches to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unet_ddp.errors import UserError

_Value = TypeVar("_Value")


def load_state(module: nn.Module, state: Mapping[str, Tensor], **how: bool) -> None:
    """Load a state dict as `module.load_state_dict` does; one without versions is taken to be of the present ones.

    Modules convert what an earlier version of their code has saved, and take a state without a version for that.
    """
    versions = read_versions(state)
    if versions is None:
        versions = read_versions(module.state_dict())
    module.load_state_dict(_attach(dict(state), versions), **how)


def with_versions(
    state: dict[str, _Value], like: Mapping[str, object], prefix: str = ""
) -> dict[str, _Value]:
    """Return a state dict with the versions that `like` has, as `state_dict()` returns them; itself if it has none.

    `prefix` is left out of the modules' names.
    """
    return _attach(state, read_versions(like, prefix))


def read_versions(
    state: Mapping[str, object], prefix: str = ""
) -> dict[str, dict[str, object]] | None:
    """Return the versions of modules, by their names without `prefix`; None if the state dict has none.

    Values that are no whole numbers are left out: a checkpoint with them might not be read again.
    """
    found = getattr(state, "_metadata", None)
    if not isinstance(found, Mapping):
        return None
    versions = {}
    for name, each in found.items():
        if f"{name}.".startswith(prefix) and isinstance(each, Mapping):
            versions[f"{name}.".removeprefix(prefix)[:-1]] = _keep_plain(each)
    return versions


def _keep_plain(versions: Mapping[str, object]) -> dict[str, object]:
    """Return whole numbers by name, also in nested dicts, as `spectral_norm` has."""
    plain: dict[str, object] = {}
    for name, value in versions.items():
        if isinstance(value, Mapping):
            plain[name] = {inner: n for inner, n in value.items() if isinstance(n, int)}
        elif type(value) is int:  # a flag is of a call, not of the state
            plain[name] = value
    return plain


def _attach(state: dict[str, _Value], versions: Mapping[str, object] | None) -> dict[str, _Value]:
    if versions is None:
        return state
    versioned = OrderedDict(state)
    vars(versioned)["_metadata"] = versions
    return versioned


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor consists of plain real numbers that are all in its storage."""
    is_odd = tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex()
    return not is_odd and tensor.nbytes <= tensor.untyped_storage().nbytes()


def check_sized(where: str, module: nn.Module) -> None:
    """Check that each tensor of a module has its size.

    Raises:
        UserError: one has not; `where` says whose it is.
    """
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"{where}: {name} has no size until the first pass (a lazy layer); give the layer its channels"
            )
