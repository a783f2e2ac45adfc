"""``python -m unet_ddp export``: write a network as a file for other programs, with data that are prepared as train.py's."""

from __future__ import annotations

from collections.abc import Sequence

from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.extras.onnx import export


def main(argv: Sequence[str]) -> int:
    """Run the command, and return the exit status."""
    return export.main(argv, DATA_PARTS)
