"""The files of a pack: their names, and which of them are there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import NotFoundError, Url, find_stamp, list_objects

INDEX = "pack.index"
SHARD = re.compile(r"shard-([0-9a-f]{8}-)?\d{6}\.tar")  # see `shard_name`
BLOCK = 512  # bytes, in which tar counts
_AT_ONCE = 32  # objects that are looked for


def shard_name(number: int, attempt: str = "") -> str:
    """Return the file name of a shard, with the name of the attempt to pack if it has one."""
    return f"shard-{attempt}{number:06d}.tar"


def member_name(name: str) -> str:
    """Return the name of a pair's files in a shard, without suffix.

    WebDataset takes the text before the first dot for the name of a sample, and tar programs refuse
    paths to folders above. So dots are written as in addresses (%2E), and so is a slash at the beginning.
    """
    quoted = name.replace("%", "%25").replace(".", "%2E")
    return f"%2F{quoted[1:]}" if quoted.startswith("/") else quoted


def list_files(folder: Path) -> dict[str, int]:
    """Return the sizes in bytes of the files in a folder or below an address, by name.

    Raises:
        UserError: it can't be listed.
    """
    if isinstance(folder, Url):
        return {name: size for name, size, _ in list_objects(folder)}
    try:
        return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}") from None


def measure_objects(paths: Sequence[Path]) -> dict[str, int]:
    """Return the sizes in bytes of those objects that are there, by name, as web servers do not list them.

    Raises:
        UserError: the server does not answer.
    """

    def measure(path: Path) -> int | None:
        try:
            return find_stamp(path)[0]
        except NotFoundError:
            return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        sizes = zip(paths, pool.map(measure, paths), strict=True)
        return {path.name: size for path, size in sizes if size is not None}
