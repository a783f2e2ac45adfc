"""``python -m unet_ddp pack``: write a data set as tar shards, with data that are prepared as train.py's."""

from __future__ import annotations

from collections.abc import Sequence

from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.extras.packs import command


def main(argv: Sequence[str]) -> int:
    """Run the command, and return the exit status."""
    return command.main(argv, DATA_PARTS)
