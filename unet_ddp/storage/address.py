"""Addresses of objects, which behave as paths."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from unet_ddp.errors import UserError

SCHEMES = ("s3", "gs", "az", "http", "https")
PART = re.compile(r"(.+\.tar)#(\d+)\+(\d+)/[^/]*", re.DOTALL)
_COLLAPSED = re.compile(f"^({'|'.join(SCHEMES)}):/*")  # as a path has it
_ADDRESS = re.compile(r"([a-z0-9]+):/+([^/]+)/?(.*)", re.DOTALL)


class Url(type(Path())):  # type: ignore[misc]  # PosixPath, or Windows' own
    """The address of an object: a path whose text begins with a scheme.

    A file in a tar archive is ARCHIVE#OFFSET+SIZE/NAME, in bytes; that archive may be a local file.
    """

    def __str__(self) -> str:
        return _COLLAPSED.sub(r"\1://", super().__str__())

    def absolute(self) -> Url:
        """Return the address itself."""
        return self

    def resolve(self, strict: bool = False) -> Url:
        """Return the address itself."""
        return self


def as_path(text: str) -> Path:
    """Return a `Url` if `text` is an address or a file in an archive, else an ordinary path.

    Raises:
        UserError: a scheme that is not known, or a query.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "file":
        text = rest
    elif separator and re.fullmatch("[a-z0-9]+", scheme):
        if scheme not in SCHEMES:
            known = ", ".join(f"{each}://" for each in SCHEMES)
            raise UserError(f"{text}: {scheme}:// is not known; use {known} or a path")
        if scheme.startswith("http") and "?" in text:  # obstore takes no query
            raise UserError(
                f"{text.partition('?')[0]}: an address with a query, as a signed one, can't be read; use "
                "s3://, gs:// or az:// with keys in the environment, or download the file"
            )
        return Url(text)
    is_local_part = PART.fullmatch(text) and not _COLLAPSED.match(text)  # http:/host: a folder
    return Url(text) if is_local_part else Path(text)


def local_path(text: str, flag: str) -> Path:
    """Return a path of this machine; an address is a UserError, which names `flag`."""
    path = as_path(text)
    if isinstance(path, Url):
        raise UserError(f"{flag} {text}: is no place on this machine; name a path of it")
    return path


def is_address(text: object) -> bool:
    """Return whether a setting names something that is not on this machine."""
    return str(text).partition("://")[0] in SCHEMES


def is_remote(path: Path) -> bool:
    """Return whether to read `path` takes a client, as a part of a local archive does not."""
    return isinstance(path, Url) and bool(_ADDRESS.fullmatch(str(path)))


def refuse_web(place: Url, flag: str) -> None:
    """Raise a UserError, which names `flag`, if `place` is an address of a web server."""
    if str(place).startswith("http"):
        raise UserError(f"{place}: can't be written to; name a folder or s3://, … with {flag}")


def split_address(path: Url) -> tuple[str, str]:
    """Return an address's container, as s3://bucket, and its key in it, free of "..".

    Raises:
        UserError: it has no container.
    """
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        raise UserError(f"{path}: names no bucket; an address is like s3://bucket/folder")
    scheme, container, key = found.groups()
    key = unquote(key) if scheme in ("http", "https") else key
    return f"{scheme}://{container}", posixpath.normpath(key) if "../" in key else key
