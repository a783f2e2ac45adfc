"""The images below a folder, or below an address."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from shlex import quote

from tqdm import tqdm

from unet_ddp.data.names import PICTURE_HEAD, file_key, is_hidden
from unet_ddp.data.pairs import Stamp
from unet_ddp.data.readers.read import can_read
from unet_ddp.errors import UserError, hides_bars
from unet_ddp.files import explain_absence, is_address
from unet_ddp.storage import storage_of

_PICTURE = "samples.png"
_PREDICTED = ("_mask", "_overlay")
_CELLPOSE = ("_cp_masks.png", "_cp_masks.tif", "_masks.png", "_masks.tif")


def _advise(file: Path) -> str:
    """Return what to do with a file that is no folder of images."""
    if can_read(file.suffix.lower()):
        return "name single files in a --list"
    return f"python -m unet_ddp import makes masks of annotations, ogr2ogr new.gpkg {quote(str(file))} polygons of other maps"


def files_by_name(
    folder: Path,
    stamps: dict[str, Stamp],
    is_wanted: Callable[[str], bool] = can_read,
    others: dict[str, list[str]] | None = None,
) -> dict[str, list[str]]:
    """Return the files below `folder` whose suffix is wanted, by the key of their relative path without it.

    By default they are images. Those at an address are, and add their `stamps`. Files of other suffixes that are not
    hidden are added to `others`, by their whole names.
    """
    if is_address(folder):
        return _list_address(folder, stamps, others)
    if not os.path.isdir(folder):  # pathlib's raises for names that none can have
        reason = (
            f"is a file, not a folder; {_advise(folder)}" if os.path.exists(folder) else "not found"
        )
        raise explain_absence(folder, reason)
    files: dict[str, list[str]] = defaultdict(list)
    seen = {os.path.realpath(folder)}  # links may form a circle
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_cannot_list):
        visible = sorted(name for name in folders if not is_hidden(name))
        targets = [os.path.realpath(os.path.join(parent, name)) for name in visible]
        folders[:] = [n for n, real in zip(visible, targets, strict=True) if real not in seen]
        seen.update(targets)
        relative = os.path.relpath(parent, folder)
        prefix = "" if relative == "." else relative.replace(os.sep, "/") + "/"
        left = _find_others(parent, {*names})
        for name in sorted({*names} - left):  # text, not paths: 100,000 files take a second
            stem, _, suffix = name.rpartition(".")
            if is_hidden(name):
                continue
            if stem and is_wanted(f".{suffix.lower()}"):
                files[file_key(prefix + stem)].append(f"{parent}/{name}")
            elif others is not None:
                others[file_key(prefix + name)] = [f"{parent}/{name}"]
    return files


def _find_others(parent: str, names: Set[str]) -> set[str]:
    """Return files that programs leave beside images: a run's samples.png, Cellpose's _seg.npy beside its masks."""
    others = {
        name
        for name in names
        if name.endswith("_seg.npy")
        and not names.isdisjoint(name[:-8] + end for end in _CELLPOSE)
        and has_in_head(f"{parent}/{name}", b"'|O'")  # Python objects, as no mask has
    }
    if _PICTURE in names and has_in_head(f"{parent}/{_PICTURE}", PICTURE_HEAD):
        others.add(_PICTURE)
    return others


def has_in_head(path: str, text: bytes) -> bool:
    """Return whether a file has this text in its first bytes; False for a pipe."""
    with suppress(OSError):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return text in file.read(1024)
    return False


def find_predictions(images: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names of pictures that predict.py wrote beside images, as a_mask beside a."""
    return {
        name
        for name, (first, *_) in images.items()
        for ending in _PREDICTED
        if name.endswith(ending)
        and name.removesuffix(ending) in images
        and has_in_head(first, PICTURE_HEAD)
    }


def _list_address(
    folder: Path, stamps: dict[str, Stamp], others: dict[str, list[str]] | None
) -> dict[str, list[str]]:
    """Return the same of an address, and add the files' `stamps`."""
    files: dict[str, list[str]] = defaultdict(list)
    found = storage_of(folder).list_objects(folder)
    objects = tqdm(found, f"listing {folder}", unit="", leave=False, disable=hides_bars())
    for key, size, changed in objects:
        stem, dot, suffix = key.rpartition(".")
        if any(map(is_hidden, key.split("/"))):
            continue
        address = f"{folder}/{key}"
        if stem and can_read((dot + suffix).lower()):
            files[file_key(stem)].append(address)
            stamps[address] = size, changed
        elif others is not None:
            others[file_key(key)] = [address]
    return files


def _cannot_list(error: OSError) -> None:
    raise UserError(f"{error.filename}: {error.strerror or error}; make it readable")
