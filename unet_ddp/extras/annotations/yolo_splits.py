"""The split of a YOLO data set: the folders that data.yaml names to train, validate and test on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from unet_ddp.errors import shorten

_SIDES = {"train": "training", "val": "validation", "valid": "validation", "test": "test"}
_COMPARED = 2  # last parts of a folder: data.yaml may have the paths of another machine


def find_split(
    settings: Mapping[str, Any], images: Mapping[str, Path], labelled: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the side of each image by its name, and a line about them; nothing if data.yaml has no split.

    It has none either if an image that is `labelled` is not in exactly one of its folders. Others are to
    test on then, as nothing says what they are.
    """
    folders, lists = [], []
    for name, side in _SIDES.items():
        given = settings.get(name)
        for folder in given if isinstance(given, list) else [given]:
            parts = PurePosixPath(str(folder or "").replace("\\", "/")).parts
            kept = tuple(part for part in parts if part not in ("..", "/"))[-_COMPARED:]
            if kept and kept[-1].lower().endswith(".txt"):
                lists.append((folder, side))
            elif kept:
                folders.append((kept, side))
    if not {"training", "validation"} <= {side for _, side in folders}:
        named = {side for _, side in [*folders, *lists]}
        if not {"training", "validation"} <= named:
            return {}, []
        text = f"data.yaml splits by lists of files, as {shorten(str(lists[0][0]))}, which are not read"
        return {}, [f"{text}; name folders there, or give pairs.csv a column split"]
    sides = {}
    for name, image in images.items():
        own = image.absolute().parent.parts
        found = {side for parts, side in folders if _contains(own, parts)}
        if len(found) != 1 and name in labelled:
            where = "two of its folders" if found else "none of its folders"
            return {}, [f"split of data.yaml left out: {image} is in {where}"]
        sides[name] = found.pop() if len(found) == 1 else "test"
    if not {"training", "validation"} <= {sides[name] for name in labelled}:
        return {}, []
    return sides, ["split: of data.yaml, into training, validation and test"]


def _contains(path: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Return whether `parts` follow each other in a path."""
    return any(path[first : first + len(parts)] == parts for first in range(len(path)))
