"""``python -m unet_ddp demo-data``: write the built-in demo set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from unet_ddp.cli import parse
from unet_ddp.errors import print_lines
from unet_ddp.extras.demo_set.draw import write_demo
from unet_ddp.files import as_local_path
from unet_ddp.settings import flag


@dataclass(frozen=True)
class DemoConfig:
    """Write the built-in demo set: drawn images with masks, and a few without."""

    kind: Literal["leaves", "cells"] = "leaves"
    """leaves: 160 scenes with masks of two classes; cells: 60 grey images, masks with numbered nuclei."""
    folder: Annotated[str | None, flag("DIR")] = None
    """Folder for its sub-folders imgs, masks and unseen; default: data/demo, and data/cells for cells."""


def main(argv: Sequence[str]) -> int:
    """Write the demo set and return the exit status."""
    config = parse(DemoConfig, argv, prog="python -m unet_ddp demo-data")
    default = "data/demo" if config.kind == "leaves" else "data/cells"
    folder = as_local_path(config.folder or default, "--folder")
    write_demo(folder, config.kind)
    print_lines(f"{folder}: imgs and masks to train on, unseen to predict")
    return 0
