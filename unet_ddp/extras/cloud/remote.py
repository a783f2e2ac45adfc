"""Addresses of objects as the core has them: paths that behave like paths of files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

from unet_ddp.data.readers.read import can_read
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud.address import COLLAPSED, refuse_web
from unet_ddp.extras.cloud.clients import NotFoundError
from unet_ddp.extras.cloud.objects import find_stamp, list_objects, put, read_chunks
from unet_ddp.extras.cloud.pointer import find_newest
from unet_ddp.files import (
    cache_folder,
    make_temporary,
    remove_temporary,
    temporary_folder,
)

_FILES = {".pt", ".txt", ".csv", ".json", ".geojson"}


class Url(type(Path())):  # type: ignore[misc]  # PosixPath, or Windows' own
    """The path of an object. Its text is the address; what opens it gets a copy on this machine.

    The object is fetched when it is first opened; the copy is removed together with this path.
    A file in a tar archive is ARCHIVE#OFFSET+SIZE/NAME, in bytes; that archive may be a local file.

    Raises:
        UserError: the object can't be read.
    """

    def __str__(self) -> str:
        return COLLAPSED.sub(r"\1://", super().__str__())

    def __fspath__(self) -> str:
        return self._fetched

    @cached_property
    def _fetched(self) -> str:
        copy = _make_temporary(self.suffix)
        removal = finalize(self, _remove, copy, os.getpid())
        try:
            with copy.open("wb") as file:
                file.writelines(read_chunks(find_newest(self)))
        except BaseException:
            removal()
            raise
        return str(copy)

    def absolute(self, **_: Any) -> Url:
        """Return the address itself."""
        return self

    resolve = absolute

    def exists(self, **_: Any) -> bool:
        """Return whether the object is there, of a last.pt its pointer; a UserError if storage does not say."""
        try:
            find_stamp(self.with_name("last.json") if self.name == "last.pt" else self)
        except NotFoundError:
            return False
        return True

    is_file = exists

    def is_dir(self, **_: Any) -> bool:
        """Return whether its name may be a folder's, and there is no such object."""
        suffix = self.suffix.lower()
        return not (suffix in _FILES or can_read(suffix) or (suffix and self.exists()))

    def iterdir(self) -> Iterator[Url]:
        """Yield the objects in a folder, in the order of their names."""
        return (self / name for name, _, _ in list_objects(self, is_deep=False))


@contextmanager
def replacing_object(path: Path) -> Iterator[Path]:
    """Yield a temporary file of this machine; it is uploaded to `path` if the block succeeds."""
    temporary = _make_temporary(path.suffix)
    try:
        yield temporary
        put(path, temporary)
    finally:
        remove_temporary(temporary)


def _make_temporary(suffix: str) -> Path:
    path = temporary_folder() / f"unet_ddp-{os.urandom(8).hex()}{suffix}"
    os.close(make_temporary(path, 0o600))
    return path


def _remove(copy: Path, process: int) -> None:
    if os.getpid() == process:  # and not in one that was forked from it
        remove_temporary(copy)


def working_folder(place: Path) -> Path:
    """Return the folder of this machine for the run at an address, in the user's cache.

    Raises:
        UserError: the address can't be written to, or others may write to the cache.
    """
    refuse_web(place, "--checkpoints")
    cache = cache_folder(warns=False)
    if cache is None:
        raise UserError(
            f"{place}: its files are written to the user's cache folder first; name a folder that only you may "
            "write to with XDG_CACHE_HOME"
        )
    return cache / "runs" / f"{place.name}-{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"
