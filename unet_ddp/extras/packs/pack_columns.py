"""Columns of numbers in a file, read slice by slice: ten million rows need no extra memory.

The file is a SHA-256 of all that follows, a line of JSON, and the columns' bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.errors import UserError
from unet_ddp.extras.cloud.pointer import hash_file
from unet_ddp.files.contents import check_format, explain_missing

FORMAT = 1  # of the file's layout
_START = 65  # bytes of the digest's line


class _OpenFile:
    """A file that is open as long as anyone refers to it; processes may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)

    def read(self, start: int, size: int) -> bytes:
        data = os.pread(self.handle, size, start)
        if len(data) < size:
            raise UserError(f"{self.path}: corrupt or truncated; copy it again")
        return data


class StoredColumn:
    """An array in a file, of which slices are read."""

    def __init__(self, file: _OpenFile, offset: int, dtype: str, shape: Sequence[int]) -> None:
        self.file, self.offset, self.shape = file, offset, tuple(shape)
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "uif" or min(self.shape) < 0:
            raise ValueError(dtype)
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self.end = offset + self.row_bytes * self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, stop, _ = rows.indices(self.shape[0])
        count = max(0, stop - first)
        data = self.file.read(self.offset + first * self.row_bytes, count * self.row_bytes)
        return np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


class Columns(NamedTuple):
    """An open file of columns."""

    digest: str
    about: dict[str, Any]
    columns: dict[str, StoredColumn]


def write_columns(
    path: Path, about: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file of columns; `about` is plain values.

    Raises:
        OSError: it can't be written.
    """
    shapes = {name: [column.dtype.str, column.shape] for name, column in columns.items()}
    head = json.dumps({"format": FORMAT, "columns": shapes, **about}).encode() + b"\n"
    flat = [np.ascontiguousarray(column).reshape(-1) for column in columns.values()]
    parts: list[Any] = [head, *(column.view(np.uint8).data for column in flat)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    with path.open("wb") as file:
        file.write(digest.hexdigest().encode() + b"\n")
        file.writelines(parts)


def read_columns(path: Path, digest: str | None = None) -> Columns:
    """Open a file of columns, and check its content if its `digest` is not known already.

    Raises:
        OSError: it can't be opened.
        UserError: it is corrupt, or another one than that with `digest`.
    """
    file = _OpenFile(path)
    found = file.read(0, _START).decode(errors="replace").strip()
    if digest not in (None, found):
        raise UserError(f"{path}: has changed; start again")
    columns: dict[str, StoredColumn] = {}
    try:
        with path.open("rb") as lines:
            lines.seek(_START)
            if digest is None and found != hash_file(lines):
                reason = explain_missing(path, "an index") or "corrupt or truncated; copy it again"
                raise UserError(f"{path}: {reason}")
            lines.seek(_START)
            about = json.loads(lines.readline())
            offset = lines.tell()
        check_format(path, about, FORMAT)
        if about["format"] != FORMAT:
            raise ValueError(about["format"])
        for name, (dtype, shape) in about["columns"].items():
            columns[name] = StoredColumn(file, offset, dtype, shape)
            offset = columns[name].end
        if offset != path.stat().st_size:
            raise ValueError(offset)
    except UserError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise UserError(f"{path}: corrupt, or no file of unet_ddp; pack the images again") from None
    return Columns(found, about, columns)
