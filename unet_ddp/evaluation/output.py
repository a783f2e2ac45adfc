"""Result files: none overwritten untold, all of them written or none."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from unet_ddp.errors import RunError, UserError
from unet_ddp.evaluation.files import FILES


def check_output(folder: Path, *, overwrite: bool) -> None:
    """Make sure that results may go to `folder`; nothing is made yet.

    Raises:
        UserError: there are results and `overwrite` is not given, or it can't be written to.
    """
    there = [folder / name for name in FILES if (folder / name).exists()]
    if there and not overwrite:
        raise UserError(f"{there[0]}: is there already; give --overwrite, or --output elsewhere")
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise UserError(
            f"--output {folder}: can't be written ({error.strerror or error}); choose another folder"
        ) from None


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write the results of an evaluation in place of those before.

    Raises:
        RunError: they can't be written; those before are as they were.
    """
    halves = {name: folder / f"{name}.tmp" for name in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            halves[name].write_bytes(encoded(text))
        for name in FILES:
            if name not in files:
                (folder / name).unlink(missing_ok=True)
        for name, half in halves.items():
            half.replace(folder / name)
    except OSError as error:
        for half in halves.values():
            with contextlib.suppress(OSError):
                half.unlink(missing_ok=True)
        raise RunError(
            f"{error.filename or folder}: can't be written ({error.strerror or error}); make room, "
            "or give --output elsewhere"
        ) from None


def encoded(text: str) -> bytes:
    """UTF-8; what file names hold beside it is kept as it is."""
    return text.encode("utf-8", "surrogateescape")


def write_whole(path: Path, text: str) -> None:
    """Write a file such that it is the old one or the new.

    Raises:
        OSError: it can't be written; the old one is as it was.
    """
    half = path.with_name(path.name + ".tmp")
    try:
        half.write_bytes(encoded(text))
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
