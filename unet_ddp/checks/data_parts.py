"""The parts of the check of a data set that are handed in: it imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.augmentation import Cut
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.samplers import Draw


class ClassDraw(Protocol):
    """A `Draw` that has a line for the user."""

    def __call__(self, epoch: int, index: int) -> tuple[int, int | None]:
        """Return the index of the image to take, and the class it was chosen for."""

    def describe(self) -> str:
        """Return the line."""


class PlanDraw(Protocol):
    """A function that plans the draw of training pairs in a table."""

    def __call__(
        self, config: DataConfig, table: Table, labels: Labels, pairs: Pairs, *, seed: int
    ) -> ClassDraw | None:
        """Return the draw; None for the pairs as they are."""


@dataclass(frozen=True)
class DataParts:
    """Functions that preparing a data set may ask for; `commands/parts.py` has them."""

    write_demo: Callable[[Path], Path]
    """Write the demo set into a folder, and return it."""
    check_planes: Callable[[DataConfig, Table, MaskValues, Report], list[str]]
    """Return the problems of masks in a folder for each class, before their labels are known."""
    plan_draw: PlanDraw
    plan_cuts: Callable[[DataConfig, Draw | None], Cut | None]
    """Return what cuts training samples, with a draw or without; None if nothing does."""
    adapt: Callable[[DataConfig, Table, PreparedData, int], PreparedData]
    """Return a prepared data set as further settings and the run's seed change it."""


SCORING = DataParts(
    write_demo=lambda folder: folder,  # training has written it
    check_planes=lambda config, table, values, report: [],
    plan_draw=lambda config, table, labels, pairs, *, seed: None,
    plan_cuts=lambda config, draw: None,
    adapt=lambda config, table, data, seed: data,
)
"""Parts for pairs that are only scored, after a training with them."""
