"""What all processes of a run have alike, and a callback on the main one must not change there alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from unet_ddp.network.whole_tensors import is_whole
from unet_ddp.training.state import TrainState

_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def read_shared(state: TrainState) -> dict[str, object]:
    """Return settings of a run's training, and sums of its tensors' bits, by their names.

    In-place changes by way of `.data` have no trace in a tensor's version. A GPU is waited for once.
    """
    parts = {"network": state.network, "loss": state.loss}
    if state.average is not None:
        parts["average"] = state.average.network
    found: dict[str, object] = {"schedule": state.schedule, **state.numbers.read()}
    sums: dict[str, Tensor] = {}
    for part, module in parts.items():
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            found[f"requires_grad of {part}.{name}"] = tensor.requires_grad
            if is_whole(tensor):  # as all but constants are
                bits = tensor.detach().view(_WHOLE_NUMBERS[tensor.element_size()])
                sums[f"{part}.{name}"] = bits.sum().to(state.precision.device)
    for number, group in enumerate(state.optimizer.param_groups):
        for name, value in group.items():
            shown = len(value) if name == "params" else value
            found[f"optimizer.param_groups[{number}][{name!r}]"] = shown
    return found | dict(zip(sums, torch.stack([*sums.values()]).tolist(), strict=True))


def find_difference(before: Mapping[str, object], after: Mapping[str, object]) -> str | None:
    """Return the first name whose values differ; None if there is none."""
    names = (name for name in {**before, **after} if before.get(name) != after.get(name))
    return next(names, None)
