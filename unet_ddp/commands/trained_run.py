"""A run in its folder, as Python uses it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unet_ddp.errors import UserError
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.writers import read_rows, to_float


@dataclass(frozen=True)
class TrainedRun:
    """A run in its folder, as `train` returns it.

    `TrainedRun(Path("checkpoints/first"))` opens an earlier run.

    Example:
        run = unet_ddp.train(images="imgs", masks="masks", epochs=2, exp_name="first")
        print(run.path, run.metrics[-1]["validation_score"])  # from 0 to 1
        predictor = run.predictor(tta="mirror")
        predictor("new.jpg").to_image().save("mask.png")
    """

    path: Path
    """The folder, which has last.pt, best.pt, metrics.csv and report.html."""
    network: str | None = None
    """Import path of your own network, which `predictor` uses; None for one of this package.

    Name it for an earlier run: a checkpoint starts no code.
    """

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "path", Path(self.path).absolute()
        )  # a notebook changes its folder

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """A row of metrics.csv per epoch, by its columns; nan for a number that an epoch does not have.

        Raises:
            UserError: metrics.csv is corrupt, or the folder does not exist.
        """
        if not self.path.is_dir():
            raise UserError(f"{self.path}: there is no such folder; give that of a run")
        metrics = []
        for row in read_rows(self.path / "metrics.csv"):
            metrics.append({name: to_float(value) for name, value in row.items()})
        return metrics

    def predictor(self, **options: Any) -> Predictor:
        """Return a predictor of the run's best network; without validation, of its last one.

        Args:
            **options: as in `Predictor.from_checkpoint`, e.g. `tta="mirror"` or `device="cpu"`; `network` is the run's.

        Raises:
            UserError: the run has no checkpoint yet, or an option is out of range.
        """
        return Predictor.from_checkpoint(self, **options)


def network_of(model: object) -> str | None:
    """Return the import path of your own network, if a model is a run that has one."""
    return model.network if isinstance(model, TrainedRun) else None
