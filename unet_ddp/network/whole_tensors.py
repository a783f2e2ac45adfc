"""Tensors that checkpoints hold."""

from __future__ import annotations

import torch
from torch import Tensor


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor consists of plain real numbers that are all in its storage."""
    is_odd = tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex()
    return not is_odd and tensor.nbytes <= tensor.untyped_storage().nbytes()
