"""A loss."""

from __future__ import annotations

from torch import Tensor

from unet_ddp.config import OptimizationConfig
from unet_ddp.training.losses import Batch


class Squared:
    """1 - Dice with squares in the denominator, of all classes together."""

    column = "squared"

    def __init__(self, options: OptimizationConfig) -> None:
        pass

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return what is added over ranks."""
        overlap = (batch.probabilities * batch.truth).sum().view(1)
        return {"overlap": overlap, "squares": (batch.probabilities**2).sum().view(1)}

    def value(self, sums: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the loss of the sums of all ranks."""
        whole = sums["squares"] + sums["occurring"].sum()
        return 1 - 2 * sums["overlap"].squeeze() / whole.squeeze()
