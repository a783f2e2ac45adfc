"""Folders of masks, one for each class."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from unet_ddp.data.readers.read import can_read

MARK = "*"


def split_marked(path: Path) -> tuple[Path, Path] | None:
    """Return root and rest of masks/*/x.png; None for other paths."""
    if MARK not in path.parts:
        return None
    place = path.parts.index(MARK)
    return Path(*path.parts[:place]), Path(*path.parts[place + 1 :])


@cache
def class_folders(root: Path) -> list[str]:
    """Return the names of the visible folders with at least one readable file, sorted."""
    return sorted(
        each.name
        for each in root.iterdir()
        if each.is_dir()
        and not each.name.startswith(".")
        and any(can_read(file.suffix.lower()) for file in each.rglob("*"))
    )
