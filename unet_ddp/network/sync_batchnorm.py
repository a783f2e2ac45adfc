"""Batch norm over the batches of all ranks, on any device.

torch's SyncBatchNorm takes CUDA tensors only. For CPU ranks the same statistics come from
a differentiable sum, so that a run is the same on one process and on many there too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.distributed.world import World, sum_over_ranks


class _Normalise(torch.autograd.Function):
    """Batch norm with the mean and variance of all ranks' batches, in torch's fused kernels.

    One small collective forward and one backward, as in torch's SyncBatchNorm. The gradient is
    Ioffe and Szegedy's, "Batch Normalization" (2015), with its two means over all ranks.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalised (N, C, H, W); mean (C,), variance (C,) and number of pixels, over ranks."""
        pixels = values.numel() // values.shape[1]
        # This rank's, by nn.BatchNorm2d's own kernel (a tenth of var_mean's time); they are joined
        # in float64, where mean² loses nothing.
        mean, variance = torch.batch_norm_update_stats(values, None, None, 0.0)
        mean, variance = mean.double(), variance.double()
        own = torch.cat([mean * pixels, (variance + mean**2) * pixels, mean.new_tensor([pixels])])
        sums = sum_over_ranks(own)
        count = sums[-1]
        mean, square = (sums[:-1] / count).view(2, -1)
        variance = (square - mean**2).clamp(min=0)
        mean, variance = mean.to(values.dtype), variance.to(values.dtype)
        ctx.save_for_backward(values, weight, mean, variance, count)
        ctx.eps = eps
        normalised = F.batch_norm(values, mean, variance, weight, bias, training=False, eps=eps)
        ctx.mark_non_differentiable(mean, variance, count)
        return normalised, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        values, weight, mean, variance, count = ctx.saved_tensors
        last = values.is_contiguous(memory_format=torch.channels_last)
        order = torch.channels_last if last else torch.contiguous_format
        gradient = gradients[0].contiguous(memory_format=order)
        factor = (variance + ctx.eps).rsqrt()
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, values, torch.ones_like(mean), mean, variance, mean, factor, False, ctx.eps,
            [False, True, True],
        )  # fmt: skip
        means = sum_over_ranks(torch.cat([of_weight, of_bias])) / count.to(values.dtype)
        along, level = means.view(2, -1)  # of gradient times normalised value, and of gradient
        slope = factor if weight is None else factor * weight
        tilt = -slope * factor * along
        shift = -slope * level - tilt * mean
        shape = (1, -1, 1, 1)
        of_values = torch.addcmul(shift.view(shape), tilt.view(shape), values)
        of_values.addcmul_(slope.view(shape), gradient)
        if weight is None:
            return of_values, None, None, None
        return of_values, of_weight, of_bias, None


class SyncBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with mean and variance over the batches of all ranks.

    Same parameters, buffers and names. Statistics are taken in float32 or better. Taking
    part in training is a collective: every rank must call it equally often.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(N, C, H, W), normalised per channel over N, H and W of all ranks."""
        if not self.training:
            return super().forward(features)
        values = features.float() if features.dtype in (torch.bfloat16, torch.float16) else features
        with torch.autocast(values.device.type, enabled=False):
            normalised, mean, variance, count = _Normalise.apply(
                values, self.weight, self.bias, self.eps
            )
        self._remember(mean, variance, count)
        out: Tensor = normalised.to(features.dtype)
        return out

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Running statistics as nn.BatchNorm2d keeps them, with the unbiased variance."""
        if self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        share = self.momentum
        if share is None:
            share = 1 / float(self.num_batches_tracked or 1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _SyncBatchNormAct2d(SyncBatchNorm2d):
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


def _as_global(norm: nn.BatchNorm2d) -> SyncBatchNorm2d:
    """A batch norm that shares parameters, buffers and activation with `norm`."""
    kind = _SyncBatchNormAct2d if _has_activation(norm) else SyncBatchNorm2d
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
    result: SyncBatchNorm2d = new
    return result


def _has_activation(module: nn.Module) -> bool:
    """Whether `module` is one of timm's batch norms with an activation inside."""
    return isinstance(module, nn.BatchNorm2d) and hasattr(module, "act")
