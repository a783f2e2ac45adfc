"""Batch norm folded into the convolutions before it, for prediction."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_SIDE = 16  # of the image that shows which layers follow each other; smp's networks pad it


class _Uses(TorchFunctionMode):
    """Records, of a forward pass, which convolution each batch norm is applied to."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Counter[int]()
        """How many operations took a tensor, by its id."""
        self.weight_of: dict[int, int] = {}
        """A convolution's output, and its weight."""
        self.input_of: dict[int, int] = {}
        """A batch norm's running mean, and its input."""
        self._kept: list[Any] = []  # an id is a tensor's as long as it lives

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = (args, kwargs or {})
        output = func(*given[0], **given[1])
        if isinstance(output, Tensor):  # else it asked for a size
            self._kept.append((output, given))
            self.count.update({id(each) for each in tree_leaves(given) if isinstance(each, Tensor)})
        if func is F.conv2d:
            self.weight_of[id(output)] = id(args[1])
        elif func is F.batch_norm:
            self.input_of[id(args[1])] = id(args[0])
        return output


def fold_batchnorm(network: nn.Module, channels: int) -> nn.Module:
    """Return a copy that computes the same with each batch norm folded into its convolution.

    Only where one is applied to the output of the other, which nothing else uses. That is seen in a
    forward pass of a small image of `channels`; a network that can't take one stays as it is. The
    activation in timm's batch norm stays, too.
    """
    try:
        network = copy.deepcopy(network).eval()
    except Exception:  # of a user's own, as one with torch's old weight norm
        return network.eval()
    uses = _Uses()
    try:
        with torch.inference_mode(), uses:
            network(torch.zeros(1, channels, _SIDE, _SIDE))
    except Exception:  # of smp's and timm's many kinds: some encoders take one size only
        return network
    convolutions = {id(m.weight): m for m in network.modules() if isinstance(m, nn.Conv2d)}
    for name, norm in list(network.named_modules()):
        if type(norm).__name__ not in ("BatchNorm2d", "BatchNormAct2d"):
            continue
        features = uses.input_of.get(id(norm.running_mean), 0)
        weight = uses.weight_of.get(features, 0)
        once = (id(norm.running_mean), features, weight)
        if weight not in convolutions or any(uses.count[each] != 1 for each in once):
            continue
        convolution = convolutions[weight]
        fused = nn.utils.fuse_conv_bn_eval(convolution, norm)
        convolution.weight, convolution.bias = fused.weight, fused.bias
        network.set_submodule(name, nn.Sequential(*norm.children()))
    return network.to(memory_format=torch.channels_last)
