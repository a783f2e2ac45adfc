"""Addresses of objects as text."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from unet_ddp.errors import UserError

COLLAPSED = re.compile(r"^(s3|gs|az|https?):/*")  # as a path has it
PART = re.compile(r"(.+\.tar)#(\d+)\+(\d+)/[^/]*", re.DOTALL)
_ADDRESS = re.compile(r"([a-z0-9]+):/+([^/]+)/?(.*)", re.DOTALL)


def refuse_web(place: Path, flag: str) -> None:
    """Raise a UserError, which names `flag`, if `place` is an address of a web server."""
    if str(place).startswith("http"):
        raise UserError(f"{place}: can't be written to; name a folder or s3://, … with {flag}")


def split_address(address: Path | str) -> tuple[str, str]:
    """Return an address's container, as s3://bucket, and its key in it, free of "..".

    Raises:
        UserError: it has no container.
    """
    found = _ADDRESS.fullmatch(str(address))
    if found is None:
        raise UserError(f"{address}: names no bucket; an address is like s3://bucket/folder")
    scheme, container, key = found.groups()
    key = unquote(key) if scheme in ("http", "https") else key
    return f"{scheme}://{container}", posixpath.normpath(key) if "../" in key else key
