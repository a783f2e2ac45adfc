"""The built-in demo sets: drawn cars on a turntable, leaves, or nuclei.

Drawn from a seed alone, so that the first command works anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from unet_ddp.errors import UserError
from unet_ddp.extras.demo_set.cars import draw_views
from unet_ddp.extras.demo_set.cells import draw_nuclei
from unet_ddp.extras.demo_set.leaves import draw_leaves
from unet_ddp.files import write_errors

CARS = 10
SCENES, VIEWS = 40, 4
CELLS = 60
UNSEEN = 4

Files = Iterator[tuple[str, Image.Image]]


def write_demo(folder: Path, kind: str | None = None) -> Path:
    """Write ``imgs``, ``masks`` and ``unseen`` below `folder` unless they exist; return `folder`.

    cars: 160 pairs, 16 views of each of 10 cars, named like ``car07_02``, with masks named as in Carvana.
    leaves: 160 pairs, 4 views of each of 40 scenes, named like ``scene07_2``. cells: 60 pairs. Each has 4
    images more, of other cars or scenes, without masks. None: the kind that is there, or else cars.

    Raises:
        UserError: the folder contains something else.
    """
    done = folder / "README.txt"
    with write_errors(folder, "the demo set goes there"):
        found = done.read_text(errors="replace") if done.exists() else ""
        if found:
            if not (drawn := re.match(r"(?:Being d|D)rawn by unet_ddp \((\w+)\)", found)):
                raise UserError(f"{done}: not of the demo set; use another folder")
            if kind not in (None, drawn[1]):
                raise UserError(
                    f"{folder}: contains another demo set, not {kind}; use another folder"
                )
            kind = drawn[1]
        if found.startswith("Drawn"):
            return folder
        kind = kind or "cars"
        for place in (folder / name for name in ("imgs", "masks", "unseen")):
            place.mkdir(parents=True, exist_ok=True)
            if not found and any(place.iterdir()):
                raise UserError(
                    f"{place}: contains files that are not of the demo set; use another folder"
                )
        about = f"rawn by unet_ddp ({kind}); may be deleted, and is drawn again when needed.\n"
        done.write_text(f"Being d{about}")  # a kill leaves this
        for name, picture in KINDS[kind]():
            picture.save(folder / name, quality=92)
        done.write_text(f"D{about}")
    return folder


def _draw_cars() -> Files:
    """Yield the name and the picture of each file of cars."""
    for car in range(CARS):
        for view, (image, mask) in enumerate(draw_views(car)):
            yield f"imgs/car{car:02d}_{view:02d}.jpg", image
            yield f"masks/car{car:02d}_{view:02d}_mask.gif", mask
    for car in range(CARS, CARS + UNSEEN):
        image, _ = next(draw_views(car))
        yield f"unseen/car{car:02d}_00.jpg", image


def _draw_leaves() -> Files:
    """Yield the name and the picture of each file of leaves."""
    for scene in range(SCENES):
        for view in range(VIEWS):
            image, mask = draw_leaves(scene, view)
            yield f"imgs/scene{scene:02d}_{view}.jpg", image
            yield f"masks/scene{scene:02d}_{view}.png", mask
    for scene in range(SCENES, SCENES + UNSEEN):
        image, _ = draw_leaves(scene, 0)
        yield f"unseen/scene{scene:02d}_0.jpg", image


def _draw_cells() -> Files:
    """Yield the name and the picture of each file of cells."""
    for number in range(CELLS + UNSEEN):
        image, mask = draw_nuclei(number)
        name = f"cells{number:02d}.png"
        if number < CELLS:
            yield f"imgs/{name}", image
            yield f"masks/{name}", mask
        else:
            yield f"unseen/{name}", image


KINDS = {"cars": _draw_cars, "leaves": _draw_leaves, "cells": _draw_cells}
