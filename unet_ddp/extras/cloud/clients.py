"""Clients of storage (obstore, the extra `cloud`), and their errors in one line.

A client takes its keys from the environment, as the providers' own tools do. It repeats a request
that is throttled, refused or cut off, ever more slowly: for seconds until a container has answered
once, then for minutes. Its threads do not survive a fork: a process that uses it must not fork
others that use it too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from unet_ddp.errors import UnreachableError, UserError, how_to_install
from unet_ddp.extras.cloud.address import split_address

PATIENCE = timedelta(minutes=5)  # for a request and its repetitions
_FIRST_PATIENCE = timedelta(seconds=5)  # until a container has answered: its name may be wrong
_PAUSE, _LONGEST_PAUSE = 0.1, 15.0  # seconds before the first repetition, each twice the one before
_Answer = TypeVar("_Answer")
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

_DOWNLOAD = "download the file"
_NO_KEYS = f"{_DOWNLOAD}, or use s3://, gs:// or az:// with keys in the environment"
_FAULTS = {
    "error following redirect": "redirects in a circle; open it in a browser, and name the address that it has there",
    "Content-Length Header missing": f"the server does not say its size; {_DOWNLOAD}",
    "Range request not supported": (
        "the server sends no parts of files (range requests); copy the files to a folder of this machine, or use "
        "a server that sends them, as nginx or S3"
    ),
}
"""By what the client says, what is wrong with a server and what to do."""

reached: set[str] = set()
"""Containers that have answered this process; all of them if it contains the empty text."""


class StorageError(UnreachableError):
    """An error of the storage and not of one object: it can't be reached, or refuses its keys."""


class DeniedError(StorageError):
    """Access to an object is denied; some servers say so of one that is not there."""


class CutError(StorageError):
    """The connection ended before the content of an object did."""


class NotFoundError(UserError):
    """An object that is not there."""


def trust_all() -> None:
    """Make this process wait for storage that another one has reached."""
    reached.add("")


def ask(path: Path | str, request: Callable[[Any, str], _Answer], named: str = "") -> _Answer:
    """Return the answer to a request, a function of `client` and key; one that was cut off is asked for again.

    The client itself does so only if the server gives its objects versions (ETag).
    """
    until, pause = 0.0, _PAUSE
    while True:
        try:
            with client(path, named) as (store, key):
                return request(store, key)
        except CutError:
            until = until or time.monotonic() + _find_patience(path).total_seconds()
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _find_patience(path: Path | str) -> timedelta:
    is_known = not reached.isdisjoint(("", split_address(path)[0]))
    return PATIENCE if is_known else _FIRST_PATIENCE


@contextmanager
def client(path: Path | str, named: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the client of an address's container, and the object's key in it.

    Raises:
        UserError: of one line, for the client's errors, which have many; `path` or `named` is named.
    """
    store, key = open_client(path)
    from obstore.exceptions import BaseError

    try:
        yield store, key
    except (BaseError, OSError) as error:
        raise explain(named or path, error) from None
    reached.add(split_address(path)[0])


def open_client(path: Path | str) -> tuple[Any, str]:
    """Return the client of an address's container, and the object's key in it."""
    container, key = split_address(path)
    try:
        return connect(container, os.getpid(), _find_patience(path)), key
    except ImportError:
        raise StorageError(f"{path}: needs the extra 'cloud': {how_to_install('cloud')}") from None
    except ValueError as error:
        raise explain(path, error) from None


@cache
def connect(container: str, process: int, patience: timedelta) -> Any:
    """Return the client of a container, one for each process."""
    from obstore import store
    from obstore.exceptions import BaseError

    from_url: Any = store.from_url  # typed by provider
    try:
        return from_url(
            container,
            client_options={"connect_timeout": "5 seconds", "allow_http": True},  # if asked for
            retry_config={"max_retries": 20, "retry_timeout": patience},
        )
    except BaseError as error:
        raise ValueError(str(error)) from None


def explain(path: Path | str, error: Exception) -> UserError:
    """Return why storage refuses, and what to do about it."""
    text = str(error).partition("Debug source")[0]
    scheme = str(path).partition(":")[0]
    keys = f"set {_KEYS[scheme]}" if scheme in _KEYS else _NO_KEYS
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        reason = "there is no such bucket; create it, or correct its name"
    elif isinstance(error, FileNotFoundError):
        return NotFoundError(f"{path}: not found")
    elif re.search(r"//(169\.254\.169\.254|metadata\.google\.)|must be specified", text):
        reason = f"no keys to it were found; {keys}"
    elif re.search(r"status code: 40[13]\b", text):
        return DeniedError(f"{path}: access is denied; {keys}")
    elif "body error" in text:
        return CutError(
            f"{path}: the connection ended before its content did; try again, or {_DOWNLOAD}"
        )
    elif "error sending request" in text and (host := re.search(r"https?://[^/\s]+", text)):
        reason = f"{host[0]} can't be reached; check the name and the network"
    elif found := re.search(r"invalid path: .*?Path \"(.*?)\"", text):
        reason = f"has the key {found[1]}, of which a part is empty or dots; copy what it has to other keys"
    else:
        known = (advice for part, advice in _FAULTS.items() if part in text)
        reason = next(known, " ".join(text.split())[:300])
    return StorageError(f"{path}: {reason}")
