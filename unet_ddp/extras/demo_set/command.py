"""``python -m unet_ddp demo-data``: write the built-in demo set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from unet_ddp.cli import parse
from unet_ddp.errors import print_lines
from unet_ddp.extras.demo_set.draw import write_demo
from unet_ddp.files import as_local_path
from unet_ddp.settings import flag


@dataclass(frozen=True)
class DemoConfig:
    """Write the built-in demo set: drawn images with masks, and a few without."""

    folder: Annotated[str, flag("DIR")] = "data/demo"
    """Folder for its sub-folders imgs, masks and unseen."""


def main(argv: Sequence[str]) -> int:
    """Write the demo set and return the exit status."""
    config = parse(DemoConfig, argv, prog="python -m unet_ddp demo-data")
    folder = write_demo(as_local_path(config.folder, "--folder"))
    print_lines(f"{folder}: imgs and masks to train on, unseen to predict")
    return 0
