"""Mixed precision: autocast and the gradient scaler, both no-ops when off."""

from __future__ import annotations

import os

import torch
from torch.amp.grad_scaler import GradScaler

from unet_ddp.errors import UserError


class Precision:
    """The type the network computes in, and the scaler that keeps its gradients from underflow.

    Args:
        device: the network's device.
        amp: use mixed precision where it pays; on a CPU only for an explicit `dtype`.
        dtype: auto, bfloat16 or float16.

    Raises:
        UserError: float16 on a CPU.
    """

    def __init__(self, device: torch.device, *, amp: bool = True, dtype: str = "auto") -> None:
        self.device = device
        self.dtype = _choose_dtype(device, dtype) if amp else torch.float32
        """The type autocast computes in; float32 when off."""
        self.scaler = GradScaler(device.type, enabled=self.dtype == torch.float16)

    def autocast(self) -> torch.autocast:
        """Return the context for a forward pass."""
        enabled = self.dtype != torch.float32
        return torch.autocast(
            self.device.type, dtype=self.dtype if enabled else None, enabled=enabled
        )


def has_native_bfloat16() -> bool:
    """Return whether this CPU computes in bfloat16: a U-Net's step then takes half to two thirds.

    Without these instructions (AVX512-BF16), or where the user keeps oneDNN from them, it takes longer
    than in float32.
    """
    return "ONEDNN_MAX_CPU_ISA" not in os.environ and torch.cpu._is_avx512_bf16_supported()


def _choose_dtype(device: torch.device, dtype: str) -> torch.dtype:
    if device.type == "cuda":
        if dtype == "auto":  # before Ampere bfloat16 is emulated, many times slower than float16
            native = torch.cuda.is_bf16_supported(including_emulation=False)
            return torch.bfloat16 if native else torch.float16
        return torch.float16 if dtype == "float16" else torch.bfloat16
    if dtype == "float16":
        raise UserError("--amp-dtype float16: needs a GPU; on a CPU use bfloat16 or leave it out")
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32
