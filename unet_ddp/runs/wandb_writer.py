"""Weights & Biases, for those who ask for it with ``--wandb``."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class WandbWriter:
    """Logs the figures of each epoch to Weights & Biases."""

    def __init__(self, name: str | None, folder: Path, settings: dict[str, Any]) -> None:
        import wandb

        self.run: Any = wandb.init(
            project="unet_ddp", name=name, dir=str(folder), config=settings, resume="allow"
        )

    def write(self, row: dict[str, Any], step: int) -> None:
        """Log the cells of a row that are not empty."""
        self.run.log({key: value for key, value in row.items() if value != ""}, step=step)

    def close(self) -> None:
        """Finish the run there."""
        self.run.finish()
