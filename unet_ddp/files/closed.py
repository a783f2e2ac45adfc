"""Files and folders that this user has no permission to read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unet_ddp.errors import UserError

_AS_NOW = os.access in os.supports_effective_ids  # not Windows


def find_closed(path: Path | str) -> UserError | None:
    """Return the mistake of a path that this user may not read, or is not let through to; None of any other path."""
    path, closed = Path(path), Path(path)
    try:
        path.stat()
        if os.access(path, os.R_OK, effective_ids=_AS_NOW):
            return None
    except PermissionError:
        for folder in reversed(path.parents):
            if not os.access(folder, os.X_OK, effective_ids=_AS_NOW):
                closed = folder
                break
    except (OSError, ValueError):  # ValueError: a name that none can have
        return None
    what = "read it" if closed == path else f"enter {closed}"
    return UserError(f"{path}: no permission to {what}; make it readable, or use another")


def explain_absence(path: Path | str, reason: str) -> UserError:
    """Return the error of a path that isn't found: that this user may not look there, or else the `reason`."""
    return find_closed(path) or UserError(f"{path}: {reason}")


@contextmanager
def read_errors() -> Iterator[None]:
    """Turn an OSError of a path that this user may not read into a UserError of one line."""
    try:
        yield
    except PermissionError as error:
        mistake = None if error.filename is None else find_closed(error.filename)
        if mistake is None:
            raise
        raise mistake from None
