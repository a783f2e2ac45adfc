"""Arrays that only this process has, written once as files: then they are folders like others."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from unet_ddp.errors import count_of
from unet_ddp.extras.arrays.item_pairs import find_stamps, refuse_twice
from unet_ddp.extras.arrays.items import Items
from unet_ddp.files import write_errors

PREFIX = "arrays-"
"""Beginning of the names of folders of arrays; a digest of their content follows."""
_DAY = 24 * 60 * 60  # seconds
_KINDS = {"images", "masks"}


def write_items(items: Items, folder: Path) -> tuple[Path, str]:
    """Return a folder in `folder` with all items as files, and a line about it if it is new.

    It is known by its content: a run that continues finds its own, and none replaces another's.

    Raises:
        UserError: an item is no pair of arrays, or the files can't be written.
    """
    with write_errors(folder, "make room, or use another --checkpoints"):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f".{PREFIX}*"):  # by a process, of any host, that was killed
            if time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left, ignore_errors=True)
        temporary = folder / f".{PREFIX}{os.urandom(8).hex()}"
        try:
            digest, count, size = _write(items, temporary)
            found = folder / f"{PREFIX}{digest}"
            if found.exists():
                return found, ""
            try:
                temporary.rename(found)
            except OSError:
                if not found.exists():  # another process has written the same
                    raise
            return (
                found,
                f"{count_of(count, 'image')} and masks written to {found}/ ({size / 1e6:.1f} MB)",
            )
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write(items: Items, folder: Path) -> tuple[str, int, int]:
    """Write all items; return their digest, their number and their bytes."""
    count, size, digest, rows = len(items), 0, hashlib.blake2b(digest_size=6), dict[str, int]()
    for row in range(count):
        item = items.read(row, count)
        refuse_twice(items.images.name, rows, item.name, row)
        digest.update(repr((item.name, find_stamps(item))).encode())
        files = (
            ("images", item.suffix, item.write_image),
            ("masks", ".npy", partial(np.save, arr=item.mask)),
        )
        for kind, suffix, write in files:
            path = folder / kind / f"{item.name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                write(file)
        size += item.image.nbytes + item.mask.nbytes
    return digest.hexdigest(), count, size


def remove_others(kept: Collection[Path]) -> None:
    """Remove the arrays of earlier runs beside folders of arrays: what `write_items` has made, and no run there names."""
    for parent in {folder.parent for folder in kept}:
        named = ""
        with suppress(OSError):
            named = (parent / "config.yaml").read_text(encoding="utf-8")
        for folder in {*parent.glob(f"{PREFIX}{'[0-9a-f]' * 12}")} - {*kept}:
            is_ours = folder.is_dir() and {each.name for each in folder.iterdir()} <= _KINDS
            if is_ours and folder.name not in named:
                shutil.rmtree(folder, ignore_errors=True)


def remove_unused(written: Path) -> None:
    """Remove arrays that were written for a run, unless it has begun; and its folder if it is empty."""
    run = written.parent
    with suppress(OSError):
        if written.name in (run / "config.yaml").read_text(encoding="utf-8"):
            return
    shutil.rmtree(written, ignore_errors=True)
    with suppress(OSError):
        run.rmdir()
