"""Depthwise convolutions that CPUs train faster in float32 than in bfloat16.

oneDNN has no fast bfloat16 gradient of those with a stride or a kernel above 3x3: it took 2 to 28 times
as long as in float32, and a network with many of them gained nothing from bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _InFloat32(nn.Module):
    """A mixin before a class of convolutions: where gradients are needed, it computes in float32.

    Scores, which need none, stay those of plain autocast.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Return the convolution of `features` (N, C, H, W), in their type."""
        if not torch.is_grad_enabled():
            plain: Tensor = super().forward(features)
            return plain
        with torch.autocast(features.device.type, enabled=False):
            out: Tensor = super().forward(features.float())
        return out.to(features.dtype)


def train_depthwise_in_float32(network: nn.Module) -> None:
    """Have the depthwise convolutions of `network` that need it compute in float32 in training.

    Which ones depends on the network alone, so that a run is the same on all ranks and when resumed.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and _is_slow(module):
            kind = type(module)
            module.__class__ = type(kind.__name__, (_InFloat32, kind), {})


def _is_slow(convolution: nn.Conv2d) -> bool:
    is_depthwise = 1 < convolution.in_channels == convolution.groups
    return is_depthwise and (max(convolution.kernel_size) > 3 or max(convolution.stride) > 1)
