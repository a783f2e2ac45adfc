"""``python -m unet_ddp report``: write a run's report.html anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from unet_ddp.cli import parse
from unet_ddp.config import flag
from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.report.run import report_run
from unet_ddp.evaluation.trained import check_described
from unet_ddp.evaluation.validation_split import own_validation
from unet_ddp.runs import checkpoint
from unet_ddp.runs.tracking import show_files
from unet_ddp.runs.weights import find_model, read_model


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report.html again, from the files in its folder.

    python -m unet_ddp report checkpoints/NAME
    """

    folder: Annotated[str | None, tyro.conf.Positional, flag("[FOLDER]")] = None
    """The run folder (default: checkpoints, or the newest run in it)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""


def main(argv: Sequence[str]) -> int:
    """Score the best network of a run on its validation images again, and write the page.

    Raises:
        UserError: no run, or a page that can't be written.
    """
    config = parse(ReportConfig, argv, prog="python -m unet_ddp report")
    folder = find_run(config.folder)
    world = World(device=pick_device(config.device))
    pairs, notes = find_validation(folder / "best.pt", world)
    for note in notes:
        print(f"warning: {note}")
    print(f"wrote {report_run(folder, pairs, world, notes=notes)}")
    return 0


def find_validation(source: Path, world: World) -> tuple[list[Pair], list[str]]:
    """The run's validation images, or why there are none: the curves can be shown all the same."""
    if not source.is_file():
        return [], [f"no scores and images: there is no {source}"]
    labels = check_described(read_model(source), source)[1]
    content = checkpoint.load(source)
    try:
        return own_validation(content, source, labels, progress=show_files, workers=world.cores), []
    except UserError as mistake:
        return [], [f"no scores and images: {mistake}"]


def find_run(given: str | None) -> Path:
    """The run folder given, or that of the newest run.

    Raises:
        UserError: there is none.
    """
    folder = Path(given) if given is not None else find_model(None).parent
    if not any((folder / name).is_file() for name in ("best.pt", "metrics.csv")):
        raise UserError(
            f"{folder}: holds no run (neither best.pt nor metrics.csv); name its folder"
        )
    return folder
