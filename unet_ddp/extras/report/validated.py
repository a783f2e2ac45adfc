"""The images that runs were validated on: scores of other images can't be ranked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from unet_ddp.data.csv_cells import read_rows
from unet_ddp.errors import UserError, join_some
from unet_ddp.runs.record import NAME, read_record

_SHOWN = 8  # runs


class Validated(NamedTuple):
    """The validation images of a run."""

    paths: frozenset[str]
    fingerprint: str | None
    """Of the names and sizes of all files, wherever they are."""

    def is_of(self, other: Validated) -> bool:
        """Return whether both are the same images, if need be on another machine."""
        is_alike = self.fingerprint is not None and self.fingerprint == other.fingerprint
        return is_alike or self.paths == other.paths


def read_validated(folder: Path) -> Validated | None:
    """Return the validation images in the split.csv of a run; None if there are none, as of a pack."""
    path = folder / "split.csv"
    with suppress(UserError, IndexError):
        if path.is_file():
            rows = read_rows(path, "split.csv", errors="surrogateescape")[1:]
            paths = frozenset(row[0] for _, row in rows if row[3] == "validation")
            fingerprint = read_record(folder / NAME).get("data", {}).get("fingerprint")
            return Validated(paths, fingerprint) if paths else None
    return None


def warn_of_others(known: Mapping[str, Validated | None], folders: Mapping[str, Path]) -> list[str]:
    """Return a line about the runs, by their names, that were validated on other images than the first."""
    sides = {name: side for name, side in known.items() if side}
    first = next(iter(sides), "")
    others = [name for name in sides if not sides[name].is_of(sides[first])]
    if not others:
        return []
    one, other = (quote(str(folders[name])) for name in (first, others[0]))
    return [
        f"warning: {join_some(others, _SHOWN)}: validated on other images than {first}, so that their scores can't be "
        f"ranked; use python -m unet_ddp evaluate --model {one} --against {other}, or train them with the same "
        "--val-images or --list"
    ]
