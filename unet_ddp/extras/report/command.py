"""``python -m unet_ddp report``: write a run's report.html again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from unet_ddp.checkpoints.weights import find_model, read_model
from unet_ddp.cli import parse
from unet_ddp.data.dataset import RareKind
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, print_lines
from unet_ddp.evaluation.validation_split import rebuild
from unet_ddp.extras.report.compare import folder_of
from unet_ddp.extras.report.write import write_report
from unet_ddp.files import as_path, is_address
from unet_ddp.prediction.backends import check_described
from unet_ddp.settings import flag
from unet_ddp.storage import storage_of


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report.html again, from the files in its folder.

    python -m unet_ddp report checkpoints/NAME
    """

    folder: Annotated[str | None, tyro.conf.Positional, flag("[FOLDER]")] = None
    """The run folder, or its address (default: the newest run in checkpoints)."""
    network: Annotated[str | None, flag("MODULE:FUNCTION")] = None
    """The network of your own that the checkpoint was trained with: a checkpoint starts no code."""
    reader: Annotated[tuple[str, ...], flag("MODULE:CLASS"), tyro.conf.UseAppendAction] = ()
    """Reader of your own for other kinds of files; docs/own_parts.md. May be repeated."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""


def main(argv: Sequence[str]) -> int:
    """Score a run's best network on its validation images again, and write the page."""
    config = parse(ReportConfig, argv, prog="python -m unet_ddp report")
    use_own_readers(config.reader)
    if config.folder is None:
        place = find_model(None, typed="report {}").parent
    else:
        place = folder_of(as_path(config.folder))
    copied = storage_of(place).copy_run(place) if is_address(place) else nullcontext(place)
    with copied as folder:
        if not any((folder / name).is_file() for name in ("best.pt", "metrics.csv")):
            raise UserError(f"{place}: best.pt and metrics.csv not found; name the folder of a run")
        world = World(device=pick_device(config.device))
        pairs, rare, notes = find_validation(folder / "best.pt", place / "best.pt")
        if notes:
            _keep_full(place / "report.html", notes[0])
        print_lines(*(f"warning: {note}" for note in notes))
        page = write_report(folder, pairs, world, rare=rare, notes=notes, network=config.network)
    print_lines(f"wrote {place / page.name}")
    return 0


def find_validation(
    source: Path, named: Path | None = None
) -> tuple[Pairs, Sequence[RareKind], list[str]]:
    """Return the run's validation images, and what training has few of; a note says why there are none.

    It is of the checkpoint `source`, which messages call `named`.
    """
    named = named or source
    if not source.is_file():
        return Pairs(), [], [f"no scores and images: {named} not found"]
    model = read_model(source)
    labels = check_described(model, source)[1]
    run = shlex.quote(str(named.parent))
    advice = f"score others with python -m unet_ddp evaluate --model {run} --images DIR --masks DIR"
    try:
        data = rebuild(model.run, named, labels, advice=advice)
        return data.split.validation, data.rare, []
    except UserError as error:
        return Pairs(), [], [f"no scores and images: {error}"]


def _keep_full(page: Path, note: str) -> None:
    """Raise a UserError if a page without scores and images, as `note` says, would replace one that has them."""
    is_there = page.exists() if is_address(page) else page.is_file()
    if is_there and b"<img" in page.read_bytes():
        raise UserError(
            f"{page}: kept, as a new one would have {note}; for a page of the curves alone, rename the old one"
        )
