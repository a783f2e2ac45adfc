"""Batch norm over the batches of all ranks, on any device.

torch's SyncBatchNorm refuses CPU tensors. For CPU ranks the same statistics come from a
differentiable sum, so that a run is the same on one process and on many there too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unet_ddp.distributed.world import World, sum_statistics


class _Normalise(torch.autograd.Function):
    """Batch norm by the mean and variance of all ranks' batches, in torch's fused kernels.

    One small collective forward and one backward, as in torch's SyncBatchNorm. The gradient is
    that of Ioffe and Szegedy, "Batch Normalization" (2015), with its two means over all ranks.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return normalised (N, C, H, W); mean (C,), variance (C,) and pixel count over ranks."""
        pixels = values.numel() // values.shape[1]
        # nn.BatchNorm2d's own kernel takes a tenth of var_mean's time. The ranks' results are
        # joined in float64, where mean² loses nothing.
        mean, variance = torch.batch_norm_update_stats(values, None, None, 0.0)
        mean, variance = mean.double(), variance.double()
        sums = sum_statistics(
            torch.cat([mean * pixels, (variance + mean**2) * pixels, mean.new_tensor([pixels])])
        )  # (2C + 1,)
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
        """Return weight * invstd * (dy - mean(dy) - x̂ * mean(dy * x̂)), with x̂ the normalised x."""
        values, weight, mean, variance, count = ctx.saved_tensors
        is_last = values.is_contiguous(memory_format=torch.channels_last)
        gradient = gradients[0].contiguous(
            memory_format=torch.channels_last if is_last else torch.contiguous_format
        )
        invstd = (variance + ctx.eps).rsqrt()
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, values, torch.ones_like(mean), mean, variance, mean, invstd, False, ctx.eps,
            [False, True, True],
        )  # fmt: skip
        means = sum_statistics(torch.cat([grad_weight, grad_bias])) / count.to(values.dtype)
        mean_of_product, mean_of_gradient = means.view(2, -1)
        # As a linear function of x and dy, so that two fused passes over the pixels are enough.
        scale = invstd if weight is None else invstd * weight
        slope = -scale * invstd * mean_of_product
        offset = -scale * mean_of_gradient - slope * mean
        shape = (1, -1, 1, 1)
        grad_values = torch.addcmul(offset.view(shape), slope.view(shape), values)
        grad_values.addcmul_(scale.view(shape), gradient)
        if weight is None:
            return grad_values, None, None, None
        return grad_values, grad_weight, grad_bias, None


class SyncBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with mean and variance over the batches of all ranks.

    Same parameters, buffers and names. Statistics are taken in float32 or better. In training a
    forward pass is a collective: every rank must call it equally often.
    """

    def forward(self, features: Tensor) -> Tensor:
        """Return `features` (N, C, H, W) normalised per channel over N, H and W of all ranks."""
        if not self.training:
            return super().forward(features)
        values = features.float() if features.dtype in (torch.bfloat16, torch.float16) else features
        with torch.autocast(values.device.type, enabled=False):
            normalised, mean, variance, count = _Normalise.apply(
                values, self.weight, self.bias, self.eps
            )
        self._update_running_statistics(mean, variance, count)
        out: Tensor = normalised.to(features.dtype)
        return out

    @torch.no_grad()
    def _update_running_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Update the buffers as nn.BatchNorm2d does, with the unbiased variance."""
        if self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:  # a plain average over all batches
            momentum = 1 / float(self.num_batches_tracked or 1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _SyncBatchNormAct2d(SyncBatchNorm2d):
    """timm's BatchNormAct2d over all ranks: batch norm with an activation inside."""

    drop: nn.Module
    act: nn.Module

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(features)))
        return out


def synchronise_batchnorm(network: nn.Module, world: World) -> nn.Module:
    """Return `network` with batch norm over all ranks; `network` itself on one rank.

    Activations that timm keeps inside its batch norms stay; torch's own converter drops them.
    """
    if world.size == 1:
        return network
    if world.device.type == "cpu":
        return _convert(network)
    if any(_has_activation(module) for module in network.modules()):
        from timm.layers import convert_sync_batchnorm

        converted: nn.Module = convert_sync_batchnorm(network)
        return converted
    return nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-any-return, no-untyped-call]


def _convert(module: nn.Module) -> nn.Module:
    """Return `module`; batch norms give way to ours, with their parameters, buffers, activation."""
    if not isinstance(module, nn.BatchNorm2d):
        for name, child in module.named_children():
            setattr(module, name, _convert(child))
        return module
    kind = _SyncBatchNormAct2d if _has_activation(module) else SyncBatchNorm2d
    sizes = module.num_features, module.eps, module.momentum
    converted = kind(*sizes, module.affine, module.track_running_stats)
    for shared in (module._parameters, module._buffers, module._modules):
        for name, value in shared.items():
            setattr(converted, name, value)
    return converted.train(module.training)


def _has_activation(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm2d) and hasattr(module, "act")
