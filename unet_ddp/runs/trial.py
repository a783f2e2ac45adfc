"""Parts of the user's own are tried before the run has a folder: their state must be one that a checkpoint keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from unet_ddp.checkpoints.file import is_whole
from unet_ddp.errors import UserError


def refuse_lost_state(module: nn.Module, train: Callable[[], object], flag: str) -> None:
    """Call `train`, which changes `module` as a step does, and leave its state dict as it was.

    Raises:
        UserError: its state can't be saved and read again, or what changes in training is not in it; `flag` names it.
    """
    before = _read_state(module, flag)
    outside = {name: tensor.detach().clone() for name, tensor in _outside_state(module).items()}
    buffers = {name: (each.shape, each.dtype) for name, each in module.named_buffers()}
    train()
    for name, buffer in module.named_buffers():
        first = buffers.get(name, (buffer.shape, buffer.dtype))
        if (buffer.shape, buffer.dtype) != first:
            raise UserError(
                f"{flag}: its buffer {name} becomes {tuple(buffer.shape)} of {buffer.dtype}, it was "
                f"{tuple(first[0])} of {first[1]}; give it its shape and type in __init__"
            )
    after = _read_state(module, flag)
    for name, tensor in _outside_state(module).items():
        if name in outside and not _is_same(tensor, outside[name]):
            raise UserError(
                f"{flag}: {name} changes in training, and no checkpoint keeps it; make it a buffer, by "
                "self.register_buffer(name, tensor)"
            )
    if after.keys() != before.keys():
        names = ", ".join(sorted(after.keys() ^ before.keys())[:3])
        raise UserError(
            f"{flag}: its state gets or loses {names} in training; make all in __init__"
        )
    module.load_state_dict(before)


def _read_state(module: nn.Module, flag: str) -> dict[str, Tensor]:
    """Return a copy of the state dict, all of which a checkpoint can hold."""
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{flag}: its state has {name}, a {type(value).__name__}; checkpoints keep tensors: return "
                "one from get_extra_state, or use register_buffer"
            )
        if value.device.type != "cuda" and not is_whole(value):
            raise UserError(
                f"{flag}: its state has {name}, a tensor of {value.dtype} that checkpoints do not keep; "
                "use real numbers in memory of their own, e.g. torch.view_as_real(tensor).contiguous()"
            )
    return {name: copy.deepcopy(value.detach()) for name, value in state.items()}


def _outside_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that the state dict lacks: plain attributes, and buffers that are not persistent."""
    found: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        skipped: set[str] = part._non_persistent_buffers_set
        plain = {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}
        plain |= {name: part._buffers[name] for name in skipped}
        for name, value in plain.items():
            if value is not None and value.is_leaf:  # others are computed anew in each pass
                found[f"{prefix}.{name}".lstrip(".")] = value
    return found


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
