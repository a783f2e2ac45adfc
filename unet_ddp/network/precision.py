"""Mixed precision: autocast and the gradient scaler, both no-ops when off; what stays in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from unet_ddp.errors import UserError


class Precision:
    """The type the network computes in, and the scaler that keeps its gradients from underflow.

    Args:
        device: the network's device.
        precision: float32, bfloat16, float16, or auto: mixed where it pays, on a CPU float32.

    Raises:
        UserError: float16 on a CPU.
    """

    def __init__(self, device: torch.device, precision: str = "auto") -> None:
        is_cpu = device.type == "cpu"
        if precision == "float16" and is_cpu:
            raise UserError(
                "--precision float16: needs a GPU; on a CPU use bfloat16 or leave it out"
            )
        if precision == "auto" and is_cpu:
            precision = "float32"
        elif precision == "auto":
            # Before Ampere bfloat16 is emulated, many times slower than float16.
            is_native = torch.cuda.is_bf16_supported(including_emulation=False)
            precision = "bfloat16" if is_native else "float16"
        self.device = device
        self.dtype: torch.dtype = getattr(torch, precision)
        """The type autocast computes in; float32 when off."""
        self.scaler = GradScaler(device.type, enabled=self.dtype == torch.float16)

    def autocast(self) -> torch.autocast:
        """Return the context for a forward pass."""
        is_mixed = self.dtype != torch.float32
        dtype = self.dtype if is_mixed else None
        return torch.autocast(self.device.type, dtype=dtype, enabled=is_mixed)


def image_type(network: nn.Module) -> torch.dtype:
    """Return the type of a network's images: float32, unless all its floating parameters are of one other type.

    The network is asked in each step, and a walk over all its modules would take long: usually this one ends soon. Frozen
    parameters count as trained ones do, as training freezes some that prediction does not.
    """
    types = (p.dtype for p in network.parameters() if p.is_floating_point())
    first = next(types, torch.float32)
    is_other = first != torch.float32 and all(each == first for each in types)
    return first if is_other else torch.float32


# -- depthwise convolutions ----------------------------------------------------------------


class _InFloat32(nn.Module):
    """A mixin before a class of convolutions: where gradients are needed, it computes in float32.

    Without gradients it computes as under plain autocast.
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

    They are the ones with a stride or a kernel above 3x3, of which oneDNN has no fast bfloat16 gradient. It
    took 2 to 28 times as long as in float32: a network with many of them gained nothing from bfloat16.
    The choice depends on the network alone, so that a run is the same on all ranks and when resumed.
    """
    for module in network.modules():
        if not isinstance(module, nn.Conv2d) or not 1 < module.in_channels == module.groups:
            continue
        if max(module.kernel_size) > 3 or max(module.stride) > 1:
            kind = type(module)
            module.__class__ = type(kind.__name__, (_InFloat32, kind), {})
