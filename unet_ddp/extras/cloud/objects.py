"""Objects, read, listed, put and deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, Any

from unet_ddp.errors import UserError
from unet_ddp.extras.cloud.address import PART, refuse_web, split_address
from unet_ddp.extras.cloud.clients import (
    PATIENCE,
    NotFoundError,
    ask,
    client,
    explain,
    open_client,
    trust_all,
)
from unet_ddp.files import complain, is_address

_CHUNK = 1 << 24  # bytes that are read at a time
_AT_ONCE = 32  # requests
_GAP = 4096  # bytes between two parts of an archive that one request reads
_SLOW, _SLOW_AGAIN = 10.0, 60.0  # seconds of a read that is warned of; between two warnings
_PAUSES = (1.0, 4.0, 15.0)  # seconds between attempts to put
_warns_from = 0.0  # on the monotonic clock
_held: dict[str, Future[dict[str, bytes]]] = {}  # objects that `fetch_ahead` reads
Version = dict[str, str]  # of an object; it changes when the object is put again


def start_reader(*, warns: bool) -> None:
    """Make this process, a reading one, wait for storage that its parent has reached.

    It says when reading is slow if it `warns`.
    """
    global _warns_from
    trust_all()
    _warns_from = 0.0 if warns else float("inf")


def read(path: Path) -> bytes:
    """Return the content of an object, or of a file in an archive.

    Raises:
        UserError: it can't be read.
    """
    return b"".join(read_chunks(path))


def fetch_ahead(paths: Iterable[Path]) -> None:
    """Begin to read objects, several at once, and keep them in memory for whoever reads them.

    Those that the next call does not name are dropped. Files of this machine are ignored.
    """
    wanted = dict.fromkeys(filter(is_address, map(str, paths)))
    for name in _held.keys() - wanted.keys():
        _held.pop(name).cancel()
    groups: list[list[str]] = []
    before, end = "", 0
    for name in [name for name in wanted if name not in _held]:
        archive, first, last = _span(name)
        if archive == before and 0 <= first - end <= _GAP:  # the mask of an image: one request
            groups[-1].append(name)
            before = ""
        else:
            groups.append([name])
            before, end = archive, last
    for group in groups:
        content = _threads(os.getpid()).submit(_fetch_together, group)
        _held.update(dict.fromkeys(group, content))


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process that read for `fetch_ahead`."""
    return ThreadPoolExecutor(_AT_ONCE, "storage")


def list_objects(folder: Path, *, is_deep: bool = True) -> Iterator[tuple[str, int, int]]:
    """Yield the key below `folder`, size in bytes and time (ns) of each object in it, in key order.

    With `is_deep`, those in its sub-folders too.

    Raises:
        UserError: it can't be listed.
    """
    if str(folder).startswith("http"):
        raise UserError(f"{folder}: web servers do not list their files; name them in a list")
    with client(folder) as (store, prefix):
        import obstore

        below = f"{prefix}/" if prefix else ""
        listed: Any = obstore.list(store, below or None) if is_deep else None
        for objects in listed or [obstore.list_with_delimiter(store, below or None)["objects"]]:
            for each in objects:
                changed = int(each["last_modified"].timestamp() * 1e9)
                yield each["path"].removeprefix(below), each["size"], changed


def find_stamp(path: Path) -> tuple[int, int]:
    """Return size in bytes and time (ns) of an object, or of a file in an archive.

    Raises:
        OSError: a local archive can't be found.
        UserError: the object can't.
    """
    archive, first, end = _span(path)
    if is_address(archive):
        with client(archive) as (store, key):
            import obstore

            found = obstore.head(store, key)
        size, changed = found["size"], int(found["last_modified"].timestamp() * 1e9)
    else:
        size, changed = 0, Path(archive).stat().st_mtime_ns
    return end - first or size, changed


def check_answers(folder: Path, flag: str) -> None:
    """Raise a UserError unless objects can be put below an address, as far as it says by listing."""
    refuse_web(folder, flag)
    next(list_objects(folder), None)


def read_version(path: Path) -> tuple[bytes, Version] | None:
    """Return the content of a small object and its version; None if there is no such object.

    Raises:
        UserError: it can't be read.
    """
    try:
        return ask(path, _get_version)
    except NotFoundError:
        return None


def put(
    path: Path, content: bytes | Path | IO[bytes], *, replaces: Version | bool = True
) -> Version:
    """Put bytes, or a file's, as an object that appears as a whole; return its version.

    A large one goes in parts. With `replaces` a version, only that one is replaced; False: none.

    Raises:
        FileExistsError: it already exists, or in another version, with another content.
        UserError: it can't be put.
    """
    store, key = open_client(path)
    from obstore import exceptions
    from obstore import put as put_once

    mode: Any = "overwrite" if replaces is True else replaces or "create"
    until = time.monotonic() + PATIENCE.total_seconds()
    for pause in (*_PAUSES, None):  # the client itself does not repeat a put that was cut off
        try:
            if not isinstance(content, (bytes, Path)):
                content.seek(0)
            return _version(put_once(store, key, content, mode=mode))
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            found = read_version(path)
            ours = content.read_bytes() if isinstance(content, Path) else content
            if found is None or found[0] != ours:
                raise FileExistsError(str(path)) from None
            return found[1]  # put by an attempt whose answer was lost
        except (exceptions.BaseError, OSError) as error:
            is_passing = isinstance(error, exceptions.GenericError)
            if pause is None or not is_passing or time.monotonic() + pause > until:
                raise explain(path, error) from None
            time.sleep(pause)
    raise AssertionError  # the last attempt returns or raises


def delete(path: Path) -> None:
    """Delete an object, if it is there.

    Raises:
        UserError: it can't be deleted.
    """
    with client(path) as (store, key):
        import obstore

        obstore.delete(store, key)


def copy(source: Path, target: Path) -> None:
    """Copy an object in its container, without reading it; a UserError says why it can't be."""
    with client(source) as (store, key):
        import obstore

        obstore.copy(store, key, split_address(target)[1])


# -- reading -------------------------------------------------------------------------------


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of an object, or of a file in an archive, in pieces; warn if it was slow."""
    global _warns_from
    started = time.monotonic()
    if held := _held.get(str(path)):
        yield held.result()[str(path)]
    else:
        yield from _fetch(*_span(path), str(path))
    now = time.monotonic()
    if now - started > _SLOW and now > _warns_from:
        _warns_from = now + _SLOW_AGAIN
        complain(f"{path}: took {now - started:.0f} s; storage is slow")


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


def _span(path: Path | str) -> tuple[str, int, int]:
    """Return archive, first byte and end of a part; an object itself, and zeros."""
    part = PART.fullmatch(str(path))
    if part is None:
        return str(path), 0, 0
    first = int(part[2])
    return part[1], first, first + int(part[3])


def _fetch_together(names: list[str]) -> dict[str, bytes]:
    """Return the content of an object, or of two parts of an archive."""
    archive, first, _ = _span(names[0])
    _, _, last = _span(names[-1])
    content = b"".join(_fetch(archive, first, last, names[0]))
    if len(names) == 1:  # perhaps an object, whose end is not known
        return {names[0]: content}
    parts = {}
    for name in names:
        _, start, end = _span(name)
        parts[name] = content[start - first : end - first]
    return parts


def _fetch(archive: str, first: int, last: int, named: str) -> Iterator[bytes]:
    """Yield the bytes of an archive from `first` to `last`, of an object all, in pieces."""
    if not is_address(archive):
        try:
            with Path(archive).open("rb") as file:
                file.seek(first)
                yield file.read(last - first)
        except OSError as error:
            raise UserError(f"{archive}: {error.strerror or error}") from None
        return
    if archive == named:
        content, last = ask(archive, _get_small)
        if content is not None:
            yield content
            return
    for start in range(first, last, _CHUNK):  # a request may last 30 seconds
        yield get_range(archive, start, min(start + _CHUNK, last), named)


def get_range(path: Path | str, first: int, end: int, named: str = "") -> bytes:
    """Return the bytes of an object from `first` to `end`; errors name it, or `named`."""

    def request(store: Any, key: str) -> bytes:
        import obstore

        return bytes(obstore.get_range(store, key, start=first, end=end))

    return ask(path, request, named)


def _get_small(store: Any, key: str) -> tuple[bytes | None, int]:
    """Return the content of an object, None if it is large, and its size."""
    import obstore

    found = obstore.get(store, key)
    size = found.meta["size"]
    return bytes(found.bytes()) if size <= _CHUNK else None, size


def _get_version(store: Any, key: str) -> tuple[bytes, Version]:
    import obstore

    found = obstore.get(store, key)
    return bytes(found.bytes()), _version(found.meta)
