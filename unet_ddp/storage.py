"""Objects in storage by their addresses (s3://, gs://, az://, http://), read and put as files are.

The client (obstore, the extra `cloud`) takes its keys from the environment, as the providers' own
tools do. It repeats a request that is throttled, refused or cut off, ever more slowly. Its threads
do not survive a fork: a process that uses it must not fork others that use it too.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from unet_ddp.errors import UserError

SCHEMES = ("s3", "gs", "az", "http", "https")
_ADDRESS = re.compile(r"([a-z0-9]+):/+([^/]+)/?(.*)", re.DOTALL)
_PART = re.compile(r"(.+\.tar)#(\d+)\+(\d+)/[^/]*", re.DOTALL)
_CHUNK = 1 << 24  # bytes of one request
_PATIENCE = timedelta(minutes=5)  # for a request and its repetitions
_PAUSES = (1.0, 4.0, 15.0)  # seconds between attempts to put
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

Version = dict[str, str]
"""The version of an object, which changes when it is put again."""


class Url(type(Path())):  # type: ignore[misc]  # PosixPath, or Windows' own
    """The address of an object: a path whose text begins with a scheme.

    A file in a tar archive is ARCHIVE#OFFSET+SIZE/NAME, in bytes; that archive may be a local file.
    """

    def __str__(self) -> str:
        return re.sub(r"^([a-z0-9]+):/+", r"\1://", super().__str__())

    def absolute(self) -> Url:
        """Return the address itself."""
        return self

    def resolve(self, strict: bool = False) -> Url:
        """Return the address itself."""
        return self


def as_path(text: str) -> Path:
    """Return a `Url` if `text` is an address or a file in an archive, else an ordinary path.

    Raises:
        UserError: a scheme that is not known.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "file":
        text = rest
    elif separator and re.fullmatch("[a-z0-9]+", scheme):
        if scheme not in SCHEMES:
            known = ", ".join(f"{each}://" for each in SCHEMES)
            raise UserError(f"{text}: {scheme}:// is not known; use {known} or a path")
        return Url(text)
    return Url(text) if _PART.fullmatch(text) else Path(text)


def read(path: Url) -> bytes:
    """Return the content of an object, or of a file in an archive.

    Raises:
        UserError: it can't be read.
    """
    return b"".join(read_chunks(path))


@contextmanager
def local_file(path: Path) -> Iterator[Path]:
    """Yield a file of this machine with the content of `path`: a copy of an object, removed after it.

    Raises:
        UserError: the object can't be read; what the block raises, naming the object.
    """
    if not isinstance(path, Url):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="unet_ddp-", suffix=path.suffix) as file:
        for chunk in read_chunks(path):
            file.write(chunk)
        file.flush()
        try:
            yield Path(file.name)
        except UserError as error:
            raise UserError(str(error).replace(file.name, str(path))) from None


def list_objects(folder: Url, *, is_deep: bool = True) -> Iterator[tuple[str, int, int]]:
    """Yield the key below `folder`, size in bytes and time (ns) of each object in it, in key order.

    With `is_deep`, those in its sub-folders too.

    Raises:
        UserError: it can't be listed.
    """
    import obstore

    store, prefix = _open(folder)
    below = f"{prefix.rstrip('/')}/" if prefix else ""
    with _as_user_error(folder):
        listed: Any = obstore.list(store, below or None) if is_deep else None
        for objects in listed or [obstore.list_with_delimiter(store, below or None)["objects"]]:
            for each in objects:
                changed = int(each["last_modified"].timestamp() * 1e9)
                yield each["path"].removeprefix(below), each["size"], changed


def find_stamp(path: Path) -> tuple[int, int]:
    """Return size in bytes and time (ns) of a file or an object, which change when it changes.

    Raises:
        OSError: the file can't be found.
        UserError: the object can't.
    """
    if not isinstance(path, Url):
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    if part := _PART.fullmatch(str(path)):
        path = as_path(part[1])
        return int(part[3]), find_stamp(path)[1]
    import obstore

    store, key = _open(path)
    with _as_user_error(path):
        found = obstore.head(store, key)
    return found["size"], int(found["last_modified"].timestamp() * 1e9)


def read_version(path: Url) -> tuple[bytes, Version] | None:
    """Return the content of a small object and its version; None if there is no such object.

    Raises:
        UserError: it can't be read.
    """
    import obstore

    store, key = _open(path)
    with _as_user_error(path):
        try:
            found = obstore.get(store, key)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise
            return None
        return bytes(found.bytes()), _version(found.meta)


def put(
    path: Url, content: bytes | Path | IO[bytes], *, replaces: Version | bool = True
) -> Version:
    """Put bytes, or a file's, as an object that appears as a whole; return its version.

    A large one goes in parts. With `replaces` a version, only that one is replaced; False: none.

    Raises:
        FileExistsError: it is there already, or in another version, with another content.
        UserError: it can't be put.
    """
    import obstore

    store, key = _open(path)
    mode: Any = replaces or "create"
    mode = "overwrite" if replaces is True else mode
    until = time.monotonic() + _PATIENCE.total_seconds()
    for pause in (*_PAUSES, None):  # the client itself does not repeat a put that was cut off
        try:
            if not isinstance(content, (bytes, Path)):
                content.seek(0)
            return _version(obstore.put(store, key, content, mode=mode))
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            found = read_version(path)
            if found is None or found[0] != content:
                raise FileExistsError(str(path)) from None
            return found[1]  # put by an attempt whose answer was lost
        except (obstore.exceptions.BaseError, OSError) as error:
            is_passing = isinstance(error, obstore.exceptions.GenericError)
            if pause is None or not is_passing or time.monotonic() + pause > until:
                raise UserError(f"{path}: {_explain(path, error)}") from None
            time.sleep(pause)
    raise AssertionError  # the last attempt returns or raises


def delete(path: Url) -> None:
    """Delete an object, if it is there.

    Raises:
        UserError: it can't be deleted.
    """
    import obstore

    store, key = _open(path)
    with _as_user_error(path):
        obstore.delete(store, key)


def read_chunks(path: Url) -> Iterator[bytes]:
    """Yield the content of an object, or of a file in an archive, in pieces."""
    part = _PART.fullmatch(str(path))
    archive = as_path(part[1]) if part else path
    first = int(part[2]) if part else 0
    size = int(part[3]) if part else find_stamp(path)[0]
    if not isinstance(archive, Url):
        try:
            with archive.open("rb") as file:
                file.seek(first)
                yield file.read(size)
        except OSError as error:
            raise UserError(f"{archive}: {error.strerror or error}") from None
        return
    import obstore

    store, key = _open(archive)
    for start in range(first, first + size, _CHUNK):
        with _as_user_error(path):
            length = min(_CHUNK, first + size - start)
            yield bytes(obstore.get_range(store, key, start=start, length=length))


def _open(path: Url) -> tuple[Any, str]:
    """Return the client of an address's container, and the object's key in it."""
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        raise UserError(f"{path}: names no bucket; an address is like s3://bucket/folder")
    scheme, container, key = found.groups()
    if scheme in ("http", "https"):
        key = unquote(key)
    with _as_user_error(path):
        return _connect(scheme, container, os.getpid()), key


@cache
def _connect(scheme: str, container: str, process: int) -> Any:
    """Return the client of a container, one for each process."""
    try:
        from obstore import store
    except ImportError:
        raise UserError(
            f"{scheme}://{container}: needs the extra 'cloud': pip install 'unet-ddp[cloud]'"
        ) from None
    from_url: Any = store.from_url  # typed by provider
    return from_url(
        f"{scheme}://{container}",
        client_options={"connect_timeout": "10 seconds", "allow_http": True},  # if it is asked for
        retry_config={"max_retries": 20, "retry_timeout": _PATIENCE},
    )


def _version(meta: Any) -> Version:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


@contextmanager
def _as_user_error(path: Url) -> Iterator[None]:
    """Turn the client's errors, of many lines, into a UserError of one."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        raise UserError(f"{path}: {_explain(path, error)}") from None


def _explain(path: Url, error: Exception) -> str:
    """Return why storage refuses, and what to do about it."""
    text = str(error).partition("Debug source")[0]
    scheme = str(path).partition(":")[0]
    keys = f"set {_KEYS.get(scheme, 'its keys')}"
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return "there is no such bucket; create it, or correct its name"
    if isinstance(error, FileNotFoundError):
        return "not found"
    if "169.254.169.254" in text or "metadata" in text or "must be specified" in text:
        return f"no keys to it were found; {keys}"
    if isinstance(error, PermissionError) or re.search(r"\b40[13]\b", text):
        return f"access is denied; {keys}"
    return " ".join(text.split())[:300]
