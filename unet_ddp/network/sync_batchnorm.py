"""Batch norm over the batches of all ranks, on any device.

torch's SyncBatchNorm takes CUDA tensors only. For CPU ranks the same statistics come from
a differentiable sum, so that a run is the same on one process and on many there too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unet_ddp.world import World, sum_over_ranks


class GlobalBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with mean and variance over the batches of all ranks.

    Same parameters, buffers and names. Statistics are summed in float32 or better. Taking
    part in training is a collective: every rank must call it equally often.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(N, C, H, W), normalised per channel over N, H and W of all ranks."""
        if not self.training:
            return super().forward(features)
        values = features.float() if features.dtype in (torch.bfloat16, torch.float16) else features
        pixels = values.new_full((1,), values.numel() // values.shape[1])
        sums = sum_over_ranks(torch.cat([values.sum((0, 2, 3)), pixels]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = values - mean.view(1, -1, 1, 1)
        # Squares of what is left, in a second sum: mean(x²) - mean(x)² would cancel digits.
        variance = sum_over_ranks(centred.square().sum((0, 2, 3))) / count
        self._remember(mean.detach(), variance.detach(), count)
        factor = (variance + self.eps).rsqrt()
        if self.affine:
            factor = factor * self.weight
        normalised = centred * factor.view(1, -1, 1, 1)
        if self.affine:
            normalised = normalised + self.bias.view(1, -1, 1, 1)
        return normalised.to(features.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Running statistics as nn.BatchNorm2d keeps them, with the unbiased variance."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _GlobalBatchNormAct2d(GlobalBatchNorm2d):
    """For timm's BatchNormAct2d: batch norm with an activation inside."""

    drop: nn.Module
    act: nn.Module

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(features)))
        return out


def synchronise_batchnorm(network: nn.Module, world: World) -> nn.Module:
    """`network` with its batch norms over all ranks; unchanged where there is one rank.

    Activations that timm keeps inside its batch norms stay, which torch's own converter drops.
    """
    if world.size == 1:
        return network
    if world.device.type == "cuda":
        return _synchronise_cuda(network)
    return _convert(network)


def _synchronise_cuda(network: nn.Module) -> nn.Module:
    if any(_has_activation(module) for module in network.modules()):
        from timm.layers import convert_sync_batchnorm

        converted: nn.Module = convert_sync_batchnorm(network)
        return converted
    return nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-any-return, no-untyped-call]


def _convert(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.BatchNorm2d):
        return _as_global(module)
    for name, child in module.named_children():
        setattr(module, name, _convert(child))
    return module


def _as_global(norm: nn.BatchNorm2d) -> GlobalBatchNorm2d:
    """A batch norm that shares parameters, buffers and activation with `norm`."""
    kind = _GlobalBatchNormAct2d if _has_activation(norm) else GlobalBatchNorm2d
    new: Any = kind(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    for name in ("weight", "bias"):
        setattr(new, name, getattr(norm, name))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        new._buffers[name] = norm._buffers.get(name)
    for name in ("act", "drop"):
        if _has_activation(norm):
            setattr(new, name, getattr(norm, name))
    new.train(norm.training)
    result: GlobalBatchNorm2d = new
    return result


def _has_activation(module: nn.Module) -> bool:
    """Whether `module` is one of timm's batch norms with an activation inside."""
    return isinstance(module, nn.BatchNorm2d) and hasattr(module, "act")
