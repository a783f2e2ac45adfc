"""The network in a file of another U-Net program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from unet_ddp.checkpoints.described import read_described
from unet_ddp.checkpoints.file import Content
from unet_ddp.checkpoints.weights import SavedModel, State
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Colour, pack_colour
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import Limit, UserError, from_plain, join_some, typed
from unet_ddp.network.architecture import Architecture
from unet_ddp.network.state_dicts import with_versions

_PREFIXES = ("module.", "_orig_mod.")  # of DDP, DataParallel and torch.compile
_MODULE = "model."  # of a network that is an attribute of a LightningModule
_LEVELS = ("model", "state_dict", "model_state_dict", "ema")  # where programs keep the weights
_HEADS = ("outc.conv.weight", "segmentation_head.0.weight")  # the classic U-Net's and smp's
_FOREIGN_SCALE = 0.5  # the default of the well-known U-Net scripts, which do not store theirs


def read_foreign(path: Path, content: Content) -> SavedModel:
    """Return the network in the `content` of a file that does not describe its network.

    It accepts plain state dicts, with prefixes of DDP, DataParallel and torch.compile in any order. They
    may stand under "model", "state_dict" or "model_state_dict". State dicts of the well-known Carvana
    U-Net are accepted with their mask values. A file of `export --card` describes its network itself.

    Raises:
        UserError: it contains no weights, or mask values that no mask has.
    """
    described = read_described(path, content)
    if described is not None:
        return described
    level, mask_values = content, content.get("mask_values")
    notes = []
    for name in _LEVELS:
        if isinstance(content.get(name), Mapping):
            level = content[name]
            mask_values = level.get("mask_values", mask_values)
            notes.append(f"weights found under {name!r}")
            break
    names = [name for name in level if isinstance(name, str) and name != "n_averaged"]
    tensors = {name: level[name] for name in names if isinstance(level[name], Tensor)}
    if not tensors:
        keys = ", ".join(map(str, level))[:200]
        found = f"; its keys are {keys}" if keys else ": nothing was saved in it"
        raise UserError(f"{path}: contains no weights{found}")
    state, prefix = strip_prefixes(tensors)
    if prefix:
        notes.append(f"prefix {prefix} stripped")
    state, others = take_from_module(state)
    if others is not None:
        notes.append(f"prefix {_MODULE} stripped")
        prefix += _MODULE
        if others:
            notes[-1] += f"; left: {join_some(others, 3)}"
    try:
        return _describe(with_versions(state, level, prefix), mask_values, notes)
    except UserError as error:
        raise UserError(f"{path}: {error}; fix it in the program that wrote the file") from None


def _describe(state: State, mask_values: Any, notes: list[str]) -> SavedModel:
    for head in _HEADS:
        if head in state and state[head].shape[:1] == (1,):
            state = _two_classes(state, head)
            notes.append(
                "one sigmoid output turned into two softmax outputs, which is the same function"
            )
            break
    architecture = infer_unet(state)
    if architecture is None:
        return SavedModel(state, None, None, None, notes)
    notes.append(f"{architecture}, inferred from the weights' shapes")
    labels = _foreign_labels(mask_values, architecture.num_classes)
    values = ", ".join(map(labels.show, labels.values[:16]))
    notes.append(f"mask values {values}")
    channels = architecture.channels
    pixels = Preprocessing(channels, (0.0,) * channels, (1.0,) * channels, _FOREIGN_SCALE)
    notes.append("images divided by 255")
    return SavedModel(state, architecture, labels, pixels, notes)


def strip_prefixes(state: Mapping[str, Tensor]) -> tuple[State, str]:
    """Strip the wrapper prefixes (module., _orig_mod.) that all keys share; also return them."""
    plain, stripped = dict(state), ""
    while prefix := _find_prefix(plain):
        plain = {name.removeprefix(prefix): tensor for name, tensor in plain.items()}
        stripped += prefix
    return plain, stripped


def _find_prefix(names: Collection[str]) -> str:
    for prefix in _PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            return prefix
    return ""


def take_from_module(state: State) -> tuple[State, list[str] | None]:
    """Return the network that a Lightning module has as `model`, and the names of its other tensors.

    These may be a loss's weights or the images' mean, but no convolution's. Without such a network: `state`
    itself, and None.
    """
    network: State = {}
    others = []
    for name, tensor in state.items():
        if name.startswith(_MODULE):
            network[name.removeprefix(_MODULE)] = tensor
            continue
        others.append(name)
        if name.endswith(".weight") and tensor.ndim == 4:
            return state, None
    if not any(head in network for head in _HEADS):
        return state, None
    return network, others


def infer_unet(state: Mapping[str, Tensor]) -> Architecture | None:
    """Return the classic U-Net with parameters of these names and shapes; None if there is none."""
    first, last = state.get("inc.double_conv.0.weight"), state.get("outc.conv.weight")
    if first is None or last is None or first.ndim != 4 or last.ndim != 4:
        return None
    plain = {
        "model": "unet",
        "channels": first.shape[1],
        "num_classes": last.shape[0],
        "width": first.shape[0],
        "bilinear": "up1.up.weight" not in state,
    }
    return from_plain(Architecture, plain)


def _two_classes(state: State, head: str) -> State:
    """Add a background output that is always 0: softmax over (0, x) is sigmoid(x)."""
    state = dict(state)
    for name in (head, head.replace("weight", "bias")):
        if name in state:
            state[name] = torch.cat([torch.zeros_like(state[name]), state[name]])
    return state


def _foreign_labels(mask_values: Any, num_classes: int) -> Labels:
    """Return labels from a list of values or of colours; {0, 255} or 0..C-1 without a list."""
    if not isinstance(mask_values, (list, tuple)) or len(mask_values) != num_classes:
        if num_classes == 2:
            return Labels((0, 255))
        return Labels(tuple(range(num_classes)))
    try:
        if isinstance(mask_values[0], (list, tuple)):
            triples = [list(value)[:3] for value in mask_values]
            colours = typed(triples, tuple[Colour, ...])
            return Labels(tuple(map(pack_colour, colours)), rgb=True)
        plain = [int(value) if isinstance(value, bool) else value for value in mask_values]
        values = typed(plain, tuple[Annotated[float, Limit(0, 65535)], ...])
        are_whole = all(value.is_integer() for value in values)
        if max(values) <= 1 and not are_whole:
            values = [value * 255 for value in values]
        return Labels(tuple(map(int, values)))
    except (UserError, TypeError) as error:  # TypeError: a number among the colours
        raise UserError(f"mask_values: {error}") from None
