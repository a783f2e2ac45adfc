"""A callback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from unet_ddp.runs.writers import RunInfo


class Lines:
    """Writes what it is told into a file of lines."""

    def __init__(self, run: RunInfo) -> None:
        self.folder = run.folder

    def epoch(self, row: Mapping[str, object]) -> None:
        """Write the row of an epoch."""
        self.note(epoch=row["epoch"], columns=sorted(row))

    def saved(self, path: Path) -> None:
        """Write the name of a checkpoint."""
        self.note(saved=path.name)

    def close(self) -> None:
        """Write that the run has ended."""
        self.note(closed=True)

    def note(self, **values: object) -> None:
        """Append a line."""
        with (self.folder / "lines.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
