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
    """Write a built-in demo set: drawn images with masks, and a few without."""

    kind: Literal["cars", "leaves", "cells"] = "cars"
    """cars: 160 photographs of 10 cars on a turntable; leaves: 160 scenes of two classes; cells: 60 grey images, masks with numbered nuclei."""
    output: Annotated[str | None, flag("DIR", "-o", "--folder")] = None
    """Folder for its sub-folders imgs, masks and unseen; default: data/demo for cars, data/leaves, data/cells."""


def main(argv: Sequence[str]) -> int:
    """Write the demo set and return the exit status."""
    config = parse(DemoConfig, argv, prog="python -m unet_ddp demo-data")
    default = "data/demo" if config.kind == "cars" else f"data/{config.kind}"
    folder = as_local_path(config.output or default, "--output")
    write_demo(folder, config.kind)
    print_lines(f"{folder}: imgs and masks to train on, unseen to predict")
    return 0
