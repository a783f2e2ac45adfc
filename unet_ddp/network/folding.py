"""Batch norm folded into the convolutions before it, for prediction."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

Kind = TypeVar("Kind", bound=nn.Module)

_SIDES = 16, 48  # of the images that show what a network computes; smp's networks pad the smaller
_FARTHEST = 1e-3  # from the network's own logits, of the largest; float32 loses 1e-5


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
    forward pass of a small image of `channels`. The activation in timm's batch norm stays.

    The network itself is returned, in evaluation mode, if it can't take such an image or be copied, or if
    its copy computes something else. A user's own may use a layer in ways that no pass shows.
    """
    network.eval()
    try:
        folded = copy.deepcopy(network)
        with torch.no_grad():
            _fold(folded, _draw(channels, _SIDES[0]))
            images = [_draw(channels, side) for side in _SIDES]
            same = all(_is_close(network(image), folded(image)) for image in images)
    except Exception:  # of smp's and timm's many kinds, and of a user's own
        return network
    return folded.to(memory_format=torch.channels_last) if same else network


def _draw(channels: int, side: int) -> Tensor:
    return torch.randn(1, channels, side, side, generator=torch.Generator().manual_seed(side))


def _is_close(expected: Tensor, found: Tensor) -> bool:
    return torch.allclose(expected, found, rtol=0, atol=_FARTHEST * float(expected.abs().max()))


def _fold(network: nn.Module, image: Tensor) -> None:
    """Fold the batch norms of a network that takes this image; they stay as modules that do nothing more."""
    uses = _Uses()
    with uses:
        network(image)
    convolutions = {id(each.weight): each for each in _list_plain(network, nn.Conv2d)}
    for norm in _list_plain(network, nn.BatchNorm2d):
        features = uses.input_of.get(id(norm.running_mean), 0)
        weight = uses.weight_of.get(features, 0)
        once = [
            features,
            weight,
            *map(id, [*norm.parameters(), norm.running_mean, norm.running_var]),
        ]
        if weight not in convolutions or any(uses.count[each] != 1 for each in once):
            continue
        convolution = convolutions[weight]
        fused = nn.utils.fuse_conv_bn_eval(convolution, norm)
        convolution.weight, convolution.bias = fused.weight, fused.bias
        # The same object, as a network may keep it in several places. Its activation follows, if it has one.
        norm.__class__ = nn.Sequential  # type: ignore[assignment]
        norm._parameters.clear()
        norm._buffers.clear()


def _list_plain(network: nn.Module, kind: type[Kind]) -> list[Kind]:
    """Return the modules that compute as torch's `kind` or timm's form of it does, and no more."""
    found = [each for each in network.modules() if isinstance(each, kind)]
    return [
        each
        for each in found
        if (type(each).forward is kind.forward or type(each).__module__.startswith("timm."))
        and not each._forward_pre_hooks
    ]
