"""Mixed precision: autocast and the gradient scaler, both no-ops when off."""

from __future__ import annotations

import torch
from torch.amp.grad_scaler import GradScaler

from unet_ddp.errors import UserError


class Precision:
    """In which type the network computes, and how its gradients are kept from underflow.

    Args:
        device: where it computes.
        amp: mixed precision where it pays; on a CPU only for a `dtype` that was asked for
            (autocast to bfloat16 gave no reliable gain there when tried).
        dtype: auto, bfloat16 or float16.

    Raises:
        UserError: float16 on a CPU.
    """

    def __init__(self, device: torch.device, *, amp: bool = True, dtype: str = "auto") -> None:
        self.device = device
        self.dtype = _pick(device, amp, dtype)
        """What autocast computes in; float32 when off."""
        self.scaler = GradScaler(device.type, enabled=self.dtype == torch.float16)

    def autocast(self) -> torch.autocast:
        """The context for a forward pass."""
        enabled = self.dtype != torch.float32
        return torch.autocast(
            self.device.type, dtype=self.dtype if enabled else None, enabled=enabled
        )


def _pick(device: torch.device, amp: bool, dtype: str) -> torch.dtype:
    if not amp:
        return torch.float32
    if device.type == "cuda":
        if dtype == "auto":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return torch.float16 if dtype == "float16" else torch.bfloat16
    if dtype == "float16":
        raise UserError("--amp-dtype float16: needs a GPU; on a CPU use bfloat16 or leave it out")
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32
