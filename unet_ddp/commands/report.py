"""``python -m unet_ddp report``: write a run's report.html again, with data that are prepared as train.py's."""

from __future__ import annotations

from collections.abc import Sequence

from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.extras.report import command


def main(argv: Sequence[str]) -> int:
    """Run the command, and return the exit status."""
    return command.main(argv, DATA_PARTS)
