"""torch's kernels of synchronised batch norm, which only GPUs have, as plain formulas for CPUs.

They follow aten/src/ATen/native/cuda/Normalization.cuh, also in what the kernels demand of types and
layouts. Fake tensors take their shapes and types from them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
PIXELS = (0, 2, 3)  # the dimensions of (N, C, H, W) that statistics are over


def _exact(values: Tensor) -> Tensor:
    return values.float() if values.dtype in HALF else values


def _per_channel(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)


def _check_layout(gradient: Tensor, values: Tensor) -> None:
    """The kernel reads both in the order of one of them."""
    assert gradient.shape == values.shape and gradient.dtype == values.dtype
    for layout in (torch.contiguous_format, torch.channels_last):
        if all(tensor.is_contiguous(memory_format=layout) for tensor in (gradient, values)):
            return
    raise AssertionError("gradient and input are laid out differently")


def batch_norm_stats(values: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(_exact(values), PIXELS, unbiased=False)
    return mean, (variance + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    like: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    own = like if running_mean is None else running_mean
    assert own.dtype == counts.dtype == means.dtype and counts.shape == means.shape[:1]
    mean, squares, count = torch.zeros_like(means[0]), torch.zeros_like(means[0]), counts[0] * 0
    for other_mean, invstd, other in zip(means, invstds, counts, strict=True):
        factor = 1 / (count + other)
        squares = squares + (invstd**-2 - eps) * other
        squares = squares + (mean - other_mean) ** 2 * count * other * factor
        mean = count * factor * mean + other * factor * other_mean
        count = count + other
    if running_mean is not None and running_var is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
        running_var.copy_((1 - momentum) * running_var + momentum * squares / (count - 1))
    return mean, (squares / count + eps).rsqrt()


def batch_norm_elemt(
    values: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    out = (_exact(values) - _per_channel(mean)) * _per_channel(invstd)
    if weight is not None and bias is not None:
        out = out * _per_channel(weight) + _per_channel(bias)
    return out.to(values.dtype)


def batch_norm_backward_reduce(
    gradient: Tensor,
    values: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_layout(gradient, values)
    assert input_g and (weight is not None or not (weight_g or bias_g))
    sum_dy = _exact(gradient).sum(PIXELS)
    sum_dy_xmu = (_exact(gradient) * (_exact(values) - _per_channel(mean))).sum(PIXELS)
    nothing = mean.new_empty(0)
    grad_weight = sum_dy_xmu * invstd if weight_g else nothing
    return sum_dy, sum_dy_xmu, grad_weight, sum_dy.clone() if bias_g else nothing


def batch_norm_backward_elemt(
    gradient: Tensor,
    values: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    _check_layout(gradient, values)
    assert count.dtype == torch.int32 and count.is_contiguous()  # read by its address
    share = 1 / count.sum().to(mean.dtype)
    slope = _per_channel(invstd**2 * sum_dy_xmu * share)
    centred = _exact(gradient) - _per_channel(sum_dy * share)
    out = centred - (_exact(values) - _per_channel(mean)) * slope
    return (out * _per_channel(invstd if weight is None else invstd * weight)).to(values.dtype)


KERNELS = (
    batch_norm_stats,
    batch_norm_gather_stats_with_counts,
    batch_norm_elemt,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)


@contextmanager
def reference_kernels() -> Iterator[None]:
    """Let torch call them for tensors of CPUs and of shapes alone."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for kernel in KERNELS:
            for key in ("CPU", "Meta"):
                library.impl(kernel.__name__, kernel, key)
        yield
