"""The split of a YOLO data set: the folders that data.yaml names to train, validate and test on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

_SIDES = {"train": "training", "val": "validation", "valid": "validation", "test": "test"}
_COMPARED = 2  # last parts of a folder: data.yaml may have the paths of another machine


def find_split(settings: Mapping[str, Any], images: Mapping[str, Path]) -> dict[str, str]:
    """Return the side of each image by its name; of none if not all are in exactly one of the folders."""
    folders = []
    for name, side in _SIDES.items():
        given = settings.get(name)
        for folder in given if isinstance(given, list) else [given]:
            parts = PurePosixPath(str(folder or "").replace("\\", "/")).parts
            kept = tuple(part for part in parts if part not in ("..", "/"))[-_COMPARED:]
            if kept:
                folders.append((kept, side))
    sides = {}
    for name, image in images.items():
        own = image.absolute().parent.parts
        found = {side for parts, side in folders if _contains(own, parts)}
        if len(found) != 1:
            return {}
        sides[name] = found.pop()
    return sides if {"training", "validation"} <= set(sides.values()) else {}


def _contains(path: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return whether `parts` follow each other in a path."""
    return any(path[first : first + len(parts)] == parts for first in range(len(path)))
