"""The paths of parts: scene.tif#ROW+COLUMN+HEIGHT+WIDTH.window."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from unet_ddp.errors import UserError
from unet_ddp.files import as_path

_WINDOW = re.compile(r"(.+)#(\d+)\+(\d+)\+(\d+)\+(\d+)\.window", re.DOTALL)


class Window(NamedTuple):
    """A part of an image."""

    top: int
    left: int
    height: int
    width: int

    @property
    def rows(self) -> slice:
        """Its rows."""
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        """Its columns."""
        return slice(self.left, self.left + self.width)

    def of(self, file: Path) -> Path:
        """Return the path of this part of a file."""
        return as_path(f"{file}#{'+'.join(map(str, self))}.window")


def split_window(path: Path) -> tuple[Path, Window]:
    """Return the file and the part of it that a path names.

    Raises:
        UserError: it names none.
    """
    found = _WINDOW.fullmatch(str(path))
    if found is None:
        raise UserError(f"{path}: names no part of an image; --window N does")
    return as_path(found[1]), Window(*map(int, found.groups()[1:]))
