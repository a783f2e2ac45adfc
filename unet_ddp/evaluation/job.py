"""The job of an evaluation: a model, and the pairs to score it on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.data.pairs import Pairs


@dataclass(frozen=True)
class Job:
    """A model, the pairs to score it on, and the folder for the results."""

    model: SavedModel
    source: Path
    pairs: Pairs
    groups: dict[str, str]  # by name, of all pairs of the network's run
    images: str | None  # the pairs' folder; None for the validation images of the network's run
    masks: str | None  # the folder of their masks; None also for a pack
    threshold: float | None
    output: Path
