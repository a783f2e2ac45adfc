"""Tensors that checkpoints hold."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unet_ddp.errors import UserError


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor consists of plain real numbers that are all in its storage."""
    is_odd = tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex()
    return not is_odd and tensor.nbytes <= tensor.untyped_storage().nbytes()


def check_sized(where: str, module: nn.Module) -> None:
    """Check that each tensor of a module has its size.

    Raises:
        UserError: one has not; `where` says whose it is.
    """
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(tensor):
            raise UserError(
                f"{where}: {name} has no size until the first pass (a lazy layer); give the layer its channels"
            )
