"""The tensors of modules, found without a walk over the modules."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Tensors:
    """The tensors of modules, whose places are listed once: to walk over modules takes the host 0.1 to 0.2 ms.

    A launch-bound step of a GPU is a few of them, and would have two to six walks. A pass may put another tensor
    in the place of a buffer, so the place is what is kept.
    """

    def __init__(self, *networks: nn.Module) -> None:
        modules = [module for network in networks for module in network.modules()]
        found = [p for network in networks for p in network.parameters()]
        self.parameters: list[Tensor] = [p for p in found if p.is_floating_point()]
        """Others are constants, as of an index: nothing trains or averages them."""
        places: dict[int, tuple[dict[str, Tensor | None], str, bool]] = {}
        for module in modules:
            for name, buffer in module._buffers.items():
                # Others are constants: a checkpoint does not have them, and a pass may give them another size.
                is_saved = name not in module._non_persistent_buffers_set
                if buffer is not None and is_saved:
                    places.setdefault(
                        id(buffer), (module._buffers, name, isinstance(module, _BatchNorm))
                    )
        self._places = [*places.values()]

    @property
    def buffers(self) -> list[Tensor]:
        """All buffers that are saved, as they are now."""
        return [cast(Tensor, buffers[name]) for buffers, name, _ in self._places]

    @property
    def own_buffers(self) -> list[Tensor]:
        """The saved buffers of all modules but batch norm, as they are now."""
        return [cast(Tensor, buffers[name]) for buffers, name, known in self._places if not known]


class WeightAverage:
    """An exponential moving average (EMA) of a network's weights; batch norm's buffers are copied.

    `decay` is the weight of the old average in a step, as 0.999. After n steps it is at most n / (n + 9), as
    TensorFlow's with `num_updates`: the random first weights would else spoil the average for 1 / (1 - decay) steps.
    `twin` is another network with the same state, for one that can't be copied.
    """

    def __init__(self, network: nn.Module, decay: float, twin: nn.Module | None = None) -> None:
        twin = copy.deepcopy(network) if twin is None else twin  # a compiled one has no truth value
        twin.eval()  # a user's own may return nothing
        self.network = twin.requires_grad_(False)
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
        if buffers := network.buffers:
            torch._foreach_copy_(self._tensors.buffers, buffers)
        self.steps += 1
