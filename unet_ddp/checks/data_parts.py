"""The parts of the check of a data set that are handed in: it imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.matching import Report


@dataclass(frozen=True)
class DataParts:
    """Functions that preparing a data set may ask for; `commands/parts.py` has them."""

    write_demo: Callable[[Path], Path]
    """Write the demo set into a folder, and return it."""
    check_planes: Callable[[DataConfig, Table, MaskValues, Report], list[str]]
    """Return the problems of masks in a folder for each class, before their labels are known."""
    adapt: Callable[[DataConfig, Table, PreparedData, int], PreparedData]
    """Return a prepared data set as further settings and the run's seed change it."""


SCORING = DataParts(
    write_demo=lambda folder: folder,  # training has written it
    check_planes=lambda config, table, values, report: [],
    adapt=lambda config, table, data, seed: data,
)
"""Parts for pairs that are only scored, after a training with them."""
