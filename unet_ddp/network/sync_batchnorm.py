"""Batch norm over the batches of all ranks, on any device.

torch's SyncBatchNorm refuses CPU tensors. On GPUs its host waits three times in each layer to leave
out ranks without images. Here every rank has images in every batch: the sampler's steps are whole.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from unet_ddp.distributed.world import World, gather_statistics, sum_statistics
from unet_ddp.errors import UserError


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
        squares = (variance + mean**2) * pixels
        local = torch.cat([mean * pixels, squares, mean.new_tensor([pixels])])  # (2C + 1,)
        sums = sum_statistics(local)
        count = sums[-1]
        mean, square = (sums[:-1] / count).view(2, -1)
        variance = (square - mean**2).clamp(min=0)
        mean, variance = mean.to(values.dtype), variance.to(values.dtype)
        ctx.save_for_backward(values, weight, mean, variance, count)
        ctx.eps = eps
        normalised = F.batch_norm(values, mean, variance, weight, bias, training=False, eps=eps)
        ctx.set_materialize_grads(False)  # zeros for statistics, which have no gradients
        return normalised, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        """Return weight * invstd * (dy - mean(dy) - x̂ * mean(dy * x̂)), with x̂ the normalised x."""
        values, weight, mean, variance, count = ctx.saved_tensors
        gradient = _lay_out_like(values, gradients[0])
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


class _NormaliseOnGpu(torch.autograd.Function):
    """Batch norm by all ranks' batches in the kernels of torch's SyncBatchNorm, without its waits.

    One small collective forward and one backward. Half precision stays as it is; statistics are
    float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Return normalised (N, C, H, W), and update the `running` mean and variance (C,)."""
        values = _lay_out_like(values, values)
        channels = values.shape[1]
        mean, invstd = torch.batch_norm_stats(values, eps)
        count = fill_count(values.numel() // channels, mean.dtype, mean.device)
        gathered = gather_statistics(torch.cat([mean, invstd, count]))  # (ranks, 2C + 1)
        means, invstds, counts = torch.split(gathered, [channels, channels, 1], dim=1)
        counts = counts.flatten()
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            mean,  # its type alone counts, which is that of the counts
            means,
            invstds,
            *running,
            momentum,
            eps,
            counts,
        )
        ctx.save_for_backward(values, weight, mean, invstd, counts.int())
        return torch.batch_norm_elemt(values, weight, bias, mean, invstd, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of values, weight and bias."""
        values, weight, mean, invstd, counts = ctx.saved_tensors
        gradient = _lay_out_like(values, gradients[0])
        is_affine = weight is not None
        sum_dy, sum_dy_xmu, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
            gradient, values, mean, invstd, weight, True, is_affine, is_affine
        )
        sum_dy, sum_dy_xmu = sum_statistics(torch.cat([sum_dy, sum_dy_xmu])).chunk(2)  # (C,)
        grad_values = torch.batch_norm_backward_elemt(
            gradient, values, mean, invstd, weight, sum_dy, sum_dy_xmu, counts
        )
        affine = (grad_weight, grad_bias) if is_affine else (None, None)
        return grad_values, *affine, None, None, None


@functools.lru_cache
def fill_count(pixels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor (1,) of the number of pixels, made once for each size of a layer."""
    return torch.full((1,), pixels, dtype=dtype, device=device)


def _lay_out_like(values: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor` contiguous as `values` is: channels last, otherwise channels first."""
    is_last = values.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if is_last else torch.contiguous_format
    return tensor.contiguous(memory_format=layout)


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
        momentum = self._count_batch()
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)

    def _count_batch(self) -> float:
        """Count a batch; return its weight in the running statistics."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        if self.momentum is None:  # a plain average over all batches; the host waits for a GPU
            return 1 / float(self.num_batches_tracked or 1)
        return self.momentum


class GpuSyncBatchNorm2d(SyncBatchNorm2d):
    """`SyncBatchNorm2d` in torch's kernels for GPUs, for which the host never waits."""

    def forward(self, features: Tensor) -> Tensor:
        """Return `features` (N, C, H, W) normalised per channel over N, H and W of all ranks."""
        if not self.training:
            return super().forward(features)
        running = self.running_mean, self.running_var
        out: Tensor = _NormaliseOnGpu.apply(
            features, self.weight, self.bias, running, self._count_batch(), self.eps
        )
        return out


class _Activated(nn.Module):
    """timm's BatchNormAct2d over all ranks: the activation inside its batch norm."""

    drop: nn.Module
    act: nn.Module

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.act(self.drop(super().forward(features)))
        return out


class _SyncBatchNormAct2d(_Activated, SyncBatchNorm2d):
    pass


class _GpuSyncBatchNormAct2d(_Activated, GpuSyncBatchNorm2d):
    pass


_KINDS = {
    "cpu": (SyncBatchNorm2d, _SyncBatchNormAct2d),
    "cuda": (GpuSyncBatchNorm2d, _GpuSyncBatchNormAct2d),
}


def synchronise_batchnorm(network: nn.Module, world: World) -> nn.Module:
    """Return `network`, on several ranks with batch norm over all of them.

    The layers stay the same objects, with their hooks, under all their names. Activations that timm keeps
    inside its batch norms stay; torch's own converter drops them.

    Raises:
        UserError: a layer is neither torch's nn.BatchNorm2d nor timm's.
    """
    if world.size > 1:
        for module in network.modules():
            if isinstance(module, _BatchNorm):
                module.__class__ = _find_kind(module, world.device.type)
    return network


def _find_kind(module: _BatchNorm, device: str) -> type[nn.BatchNorm2d]:
    is_timm = f"{type(module).__module__}.".startswith("timm.") and hasattr(module, "act")
    is_torch = type(module).forward is nn.BatchNorm2d.forward
    if not isinstance(module, nn.BatchNorm2d) or not (is_timm or is_torch):
        raise UserError(
            f"--batch-norm global: {type(module).__name__} knows one process; use nn.BatchNorm2d in "
            "--model, or --batch-norm local"
        )
    return _KINDS[device][is_timm]
