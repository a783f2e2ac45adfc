"""The values in a checkpoint of ours besides its tensors, each of them checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from torch import Tensor

from unet_ddp.checkpoints.file import FORMAT, Content
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import Limit, UserError, from_plain, shorten
from unet_ddp.files.contents import check_format
from unet_ddp.network.architecture import Architecture

_HEXADECIMAL = re.compile(r"-?0x[0-9a-f]+")
_Count = Annotated[int, Limit(at_least=0)]
_Positive = Annotated[float, Limit(above=0, at_most=1e38)]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best epoch of a run, from 0, and its score of validation.

    The score is `UNSCORED` if no epoch had one, and -inf before the first validation.
    """

    score: Annotated[float, Limit(at_most=1)]
    epoch: _Count
    name: str
    dice: Annotated[float, Limit(0, 1)] | None
    improved: _Count


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a network in its checkpoint."""

    format: Annotated[int, Limit(FORMAT, FORMAT)]
    architecture: Architecture
    labels: Labels
    preprocessing: Preprocessing
    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None = None
    threshold: Annotated[float, Limit(above=0, below=1)] | None = None
    best: Best | None = None
    config: dict[str, object] | None = None
    names: str | None = None
    sources: dict[str, str] | None = None  # of parts of the user's own, if there are any

    @property
    def score_name(self) -> str:
        """Name of the score that chooses the best epoch."""
        return self.best.name if self.best else "Dice"

    def __post_init__(self) -> None:
        """Refuse parts of different networks."""
        for name, own, other in (
            ("classes", self.architecture.num_classes, self.labels.num_classes),
            ("channels", self.architecture.channels, self.preprocessing.channels),
        ):
            if own != other:
                raise UserError(
                    f"architecture: {own} {name}; labels and preprocessing have {other}"
                )
        if self.threshold is not None and not self.labels.is_binary:
            raise UserError(f"threshold: {self.threshold}; expected for two classes only")


@dataclass(frozen=True)
class Position:
    """The position of a run; see `TrainState`."""

    epoch: _Count
    step: _Count
    sums: tuple[float, float, float]
    skipped: tuple[float, float]


@dataclass(frozen=True)
class Scaler:
    """The state of torch's GradScaler."""

    scale: _Positive
    growth_factor: _Positive
    backoff_factor: _Positive
    growth_interval: _Count
    _growth_tracker: _Count


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """The description of a run in its checkpoint."""

    position: Position
    best: Best
    config: dict[str, object]
    names: str
    images_per_step: Annotated[int, Limit(1, 2**20)]
    optimizer: dict[str, object]
    model: dict[str, Tensor]
    ema: dict[str, Tensor] | None
    ema_steps: _Count
    scaler: Scaler | None
    anneal: tuple[_Count, _Count] | None
    last_rate: Annotated[float, Limit(above=0)]
    files: Tensor
    crop_size: tuple[_Count, _Count] | None
    loss: dict[str, Tensor]
    numbers: dict[str, object]
    run: str
    launchers: list[str]
    resume: str
    threshold: Annotated[float, Limit(above=0, below=1)] | None
    sources: dict[str, str] | None = None  # of parts of the user's own, if there are any

    def __post_init__(self) -> None:
        """Refuse a phase that ends before it begins, and what is no number."""
        for name, number in self.numbers.items():
            is_number = isinstance(number, (bool, int, float))
            if not is_number and not _HEXADECIMAL.fullmatch(str(number)):
                raise UserError(f"numbers: {shorten(name)}: {shorten(number)}; expected a number")
        if self.anneal is not None and self.anneal[0] >= self.anneal[1]:
            raise UserError(
                f"anneal: {list(self.anneal)}; expected two steps, the first before the second"
            )


Described = TypeVar("Described", Description, SavedRun)


def check_content(kind: type[Described], path: Path, content: Content) -> Described:
    """Return what `content` says, each value checked.

    Raises:
        UserError: a value that no run writes, by its name in the file, or a later format.
    """
    check_format(path, content, FORMAT)
    try:
        return from_plain(kind, content, is_open=True)
    except UserError as error:
        version = shorten(content.get("unet_ddp"))
        raise UserError(
            f"{path}: {error}; the file is damaged, or written by another version of unet_ddp "
            f"({version}): use that one"
        ) from None
