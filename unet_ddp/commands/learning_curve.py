"""``python -m unet_ddp learning-curve``: forecast the score with twice the labels, with data that are prepared as train.py's."""

from __future__ import annotations

from collections.abc import Sequence

from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.commands.train_parts import suit_network
from unet_ddp.extras.learning_curve import command


def main(argv: Sequence[str]) -> int:
    """Run the command, and return the exit status."""
    return command.main(argv, DATA_PARTS, suit_network)
