"""State that all processes of a run have alike: a callback must not change it on the main one alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unet_ddp.network.state_dicts import is_whole
from unet_ddp.training.state import TrainState

_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}  # by their bytes


def read_shared(state: TrainState, *, sums: bool = True) -> dict[str, object]:
    """Return settings of a run's training by their names, and the `sums` of its tensors' bits if asked for.

    In-place changes by way of `.data` have no trace in a tensor's version. A GPU is waited for once. Left out are
    buffers that no checkpoint has, as each process makes them, and the rate, which the schedule gives each step.
    """
    parts: dict[str, nn.Module] = {"network": state.network, "loss": state.loss}
    if state.average is not None:
        parts["average"] = state.average.network
    found: dict[str, object] = {"schedule": state.schedule}
    tensors: dict[str, Tensor] = {}
    for part, module in parts.items():
        for name, tensor in module.state_dict(keep_vars=True).items():
            found[f"requires_grad of {part}.{name}"] = tensor.requires_grad
            tensors[f"{part}.{name}"] = tensor
    for number, group in enumerate(state.optimizer.param_groups):
        for name, value in group.items():
            shown = len(value) if name == "params" else value
            if name != "lr":
                found[f"optimizer.param_groups[{number}][{name!r}]"] = shown
    for number, kept in enumerate(state.optimizer.state.values()):
        for name, value in kept.items():
            where = tensors if isinstance(value, Tensor) else found
            where[f"optimizer.state[{number}][{name!r}]"] = value
    if not sums:
        return found
    device = state.precision.device
    bits = {name: _sum_bits(each).to(device) for name, each in tensors.items() if is_whole(each)}
    return found | dict(zip(bits, torch.stack([*bits.values()]).tolist(), strict=True))


def _sum_bits(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's numbers, read as whole ones: two of 4 bytes as one of 8, which is 10 times faster.

    One of 8 bytes is read as two: an even number of changed signs would leave their sum as it was.
    """
    bits = tensor.detach().resolve_neg()
    if bits.ndim == 4 and bits.is_contiguous(memory_format=torch.channels_last):
        bits = bits.permute(0, 2, 3, 1)
    size = bits.element_size()
    if size == 8:
        return bits.flatten().view(torch.int32).sum()
    if bits.is_contiguous() and bits.nbytes % 8 == bits.storage_offset() * size % 8 == 0:
        return bits.flatten().view(torch.int64).sum()
    return bits.view(_WHOLE_NUMBERS[size]).sum()


def find_difference(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """Return the first name whose values differ; None if there is none. The same nan is no difference."""
    names = (name for name in {**before, **after} if [before.get(name)] != [after.get(name)])
    return next(names, None)
