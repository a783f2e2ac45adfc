"""The parts of a run that are handed in: it imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from unet_ddp.checkpoints.weights import State
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import OpenCache
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.world import World
from unet_ddp.network.architecture import Architecture


class StartWeights(Protocol):
    """Weights of a file, for a new run to start from."""

    def describe(
        self, architecture: Architecture, preprocessing: Preprocessing
    ) -> tuple[Architecture, Preprocessing, list[str]]:
        """Return the network and its input as far as the file describes them, and lines for the user."""

    def fit(self, architecture: Architecture, labels: Labels) -> tuple[State, list[str]]:
        """Return the weights that the network takes, and lines for the user."""


@dataclass(frozen=True)
class RunParts:
    """Functions that settings of a run ask for, None for the others; `commands/train_parts.py` chooses them."""

    encoder_pixels: Callable[[str, Preprocessing], Preprocessing] | None = None
    """Return a preprocessing with the normalisation of an encoder's pretrained weights."""
    compile_network: Callable[[nn.Module, nn.Module, World], nn.Module] | None = None
    """Return a network wrapped, to be compiled at its first call; the loss is compiled in place."""
    log_uncompiled: Callable[[Callable[[str], None]], None] | None = None
    """Log what was left uncompiled in the first step."""
    open_cache: OpenCache | None = None
