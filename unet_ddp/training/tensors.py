"""The tensors of a network or a loss, listed once, and the moving average of a network's."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class Tensors:
    """A network's tensors, listed once: to walk over its modules takes the host 0.1 to 0.2 ms.

    A launch-bound step of a GPU is a few of them, and would have two to six walks.
    """

    def __init__(self, network: nn.Module) -> None:
        self.parameters: list[Tensor] = list(network.parameters())
        self._held: list[tuple[dict[str, Any], str]] = []
        for module in network.modules():
            held: Any = module._buffers
            self._held += [(held, name) for name, buffer in held.items() if buffer is not None]
        self.buffers: list[Tensor] = [held[name] for held, name in self._held]

    def zero_grad(self) -> None:
        """Set gradients to zeros, which can be added over ranks also where a pass has not used a parameter."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def keep_buffers(self) -> None:
        """Copy into the first tensor of a buffer what a forward pass has assigned in its place.

        `self.mean = 0.9 * self.mean + …` makes a new tensor; the average, snapshots and DDP know the first one.
        """
        for (held, name), buffer in zip(self._held, self.buffers, strict=True):
            if held[name] is not buffer:
                buffer.copy_(held[name])
                held[name] = buffer


class WeightAverage:
    """An exponential moving average (EMA) of a network's weights; batch norm's buffers are copied.

    `decay` is the weight of the old average in a step, as 0.999. After n steps it is at most n / (n + 9), as
    TensorFlow's with `num_updates`: the random first weights would else spoil the average for 1 / (1 - decay) steps.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.decay = decay
        self.steps = 0
        self._tensors = Tensors(self.network)

    @torch.no_grad()
    def update_ema(self, network: Tensors, is_finite: Tensor) -> None:
        """Follow `network`, unless its step was skipped; the device is not waited for.

        The buffers of a skipped one are restored already; `is_finite` is a bool of shape ().
        """
        averages = self._tensors.parameters
        weight = 1 - min(self.decay, self.steps / (self.steps + 9))
        new = torch._foreach_lerp(averages, network.parameters, weight)
        chosen = is_finite.to(averages[0].dtype)  # () 1 or 0: few kernels, a choice is one for each
        torch._foreach_mul_(new, chosen)
        torch._foreach_mul_(averages, 1 - chosen)
        torch._foreach_add_(averages, new)
        if network.buffers:
            torch._foreach_copy_(self._tensors.buffers, network.buffers)
        self.steps += 1
