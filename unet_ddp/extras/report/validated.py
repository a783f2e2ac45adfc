"""The images that runs were validated on: scores of other images can't be ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from unet_ddp.data.csv_cells import read_rows
from unet_ddp.data.names import file_key
from unet_ddp.errors import UserError, join_some
from unet_ddp.runs.record import NAME, read_record

_SHOWN = 8  # runs


class Validated(NamedTuple):
    """The validation images of a run, wherever they are: names start at the folder that all of them share."""

    names: frozenset[str]
    all_names: frozenset[str]
    """With the training images."""
    fingerprint: str | None
    """Of the names and sizes of all files."""

    def is_of(self, other: Validated) -> bool:
        """Return whether both are the same images, if need be on another machine."""
        is_alike = self.fingerprint is not None and self.fingerprint == other.fingerprint
        return is_alike or self.names == other.names


def read_validated(folder: Path) -> Validated | None:
    """Return the validation images in the split.csv of a run; None if there are none, as of a pack."""
    path = folder / "split.csv"
    with suppress(UserError, IndexError):
        if path.is_file():
            rows = read_rows(path, "split.csv", errors="surrogateescape")[1:]
            names = _find_names(row[0] for _, row in rows if row[3] == "validation")
            fingerprint = read_record(folder / NAME).get("data", {}).get("fingerprint")
            all_names = _find_names(row[0] for _, row in rows)
            return Validated(names, all_names, fingerprint) if names else None
    return None


def _find_names(paths: Iterable[str]) -> frozenset[str]:
    r"""Return paths from their common folder, also paths of Windows, with \."""
    split = [file_key(path.replace("\\", "/")).split("/") for path in paths]
    levels = zip(*(parts[:-1] for parts in split), strict=False)
    shared = len([*takewhile(lambda level: len({*level}) == 1, levels)])
    return frozenset("/".join(parts[shared:]) for parts in split)


def describe_others(first: str, folder: Path, others: Mapping[str, Path]) -> str:
    """Return a line about other runs, by their names, that were validated on other images than the first."""
    one, other = quote(str(folder)), quote(str(next(iter(others.values()))))
    return (
        f"warning: {join_some([*others], _SHOWN)}: validated on other images than {first}, so that their scores can't be "
        f"ranked; use python -m unet_ddp evaluate --model {one} --against {other} --images DIR --masks DIR, with "
        "images that none of them was trained on, or train them with the same --val-images or --list"
    )
