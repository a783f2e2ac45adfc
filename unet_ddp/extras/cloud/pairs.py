"""Pairs of which images or masks are objects in storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from unet_ddp.data.names import file_key, is_hidden
from unet_ddp.data.pairs import Pair, Pairs, Stamp
from unet_ddp.data.readers.read import can_read
from unet_ddp.errors import UserError, hides_bars
from unet_ddp.extras.cloud import (
    StorageError,
    Url,
    fetch_ahead,
    find_stamp,
    list_objects,
    local_file,
)

_AT_ONCE = 32  # objects that are looked for


class CloudPairs(Pairs):
    """Pairs with objects in storage, perhaps among files of this machine."""

    is_remote = True

    @staticmethod
    def files_by_name(folder: Url, stamps: dict[str, Stamp]) -> dict[str, list[str]]:
        """Return the images below an address, by relative path without suffix; note their stamps."""
        files: dict[str, list[str]] = defaultdict(list)
        objects = tqdm(
            list_objects(folder), f"listing {folder}", unit="", leave=False, disable=hides_bars()
        )
        for key, size, changed in objects:
            stem, dot, suffix = key.rpartition(".")
            hidden = any(map(is_hidden, key.split("/")))
            if stem and not hidden and can_read((dot + suffix).lower()):
                address = f"{folder}/{key}"
                files[file_key(stem)].append(address)
                stamps[address] = size, changed
        return files

    def find(self, problems: list[str]) -> Pairs:
        """Return those whose files are there, with the stamps of objects; the others are problems."""
        files = [file for pair in self for file in (pair.image, pair.mask)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            bar = tqdm(
                pool.map(_find, files), "finding", len(files), leave=False, disable=hides_bars()
            )
            stamps = list(bar)
        kept = []
        for pair, image, mask in zip(self, stamps[::2], stamps[1::2], strict=True):
            problems += [str(error) for error in (image, mask) if isinstance(error, UserError)]
            if not isinstance(image, UserError) and not isinstance(mask, UserError):
                kept.append(replace(pair, stamps=(image, mask)))
        return CloudPairs(kept)

    def share(self) -> None:
        """Do nothing: a client's threads do not survive a fork, so that no process shares memory."""

    def to_read(self, row: int) -> Pair:
        """Return a pair."""
        return self[row]

    def local(self, path: Path, ignore: int | None = None) -> AbstractContextManager[Path]:
        """Return a context with a copy of an object, or with the file of this machine."""
        return local_file(path)

    def fetch_ahead(self, paths: Iterable[Path]) -> None:
        """Begin to fetch objects that are needed next, and drop the objects of an earlier call."""
        fetch_ahead(paths)


def _find(path: Path) -> Stamp | UserError | None:
    """Return the stamp of an object, or why it has none; None for a file of this machine."""
    try:
        return find_stamp(path) if isinstance(path, Url) else None
    except StorageError:
        raise
    except (UserError, OSError) as error:
        return error if isinstance(error, UserError) else UserError(f"{path}: not found")
