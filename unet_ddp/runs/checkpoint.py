"""Writing checkpoint files such that one is always whole, and reading them without running code."""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unet_ddp.errors import UserError

FORMAT = 1

Content = dict[str, Any]


def save(path: Path, content: Content, *, keep_previous: bool = False) -> None:
    """Write `content` to `path` such that a kill at any moment leaves the old file or the new.

    A temporary file beside it, flushed to the disk, then renamed; the folder is flushed too,
    or the rename itself could be lost. Its archive holds a checksum of every record.

    Args:
        keep_previous: what was there before stays as ``last.1.pt`` beside ``last.pt``.

    Raises:
        OSError, RuntimeError: it can't be written; the old file is as it was.
    """
    half = path.with_name(path.name + ".tmp")
    try:
        with half.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        if keep_previous and path.exists():
            _keep(path)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    _flush_folder(path.parent)


def previous(path: Path) -> Path:
    """Where the generation before `path` is: last.1.pt for last.pt."""
    return path.with_name(f"{path.stem}.1{path.suffix}")


def _keep(path: Path) -> None:
    """Give the file a second name, so that it is never without one."""
    second = path.with_name(path.name + ".1.tmp")
    second.unlink(missing_ok=True)
    try:
        os.link(path, second)
    except OSError:  # a file system without links: for a moment there is only the older name
        path.replace(second)
    second.replace(previous(path))


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_or_previous(path: Path) -> tuple[Content, Path, str]:
    """What `path` holds, or its generation before where it is damaged.

    Returns:
        The content, the file it is from, and a line about the damage (empty where there is none).

    Raises:
        UserError: neither can be read.
    """
    older = previous(path)
    try:
        return load(path), path, ""
    except UserError as error:
        if not older.is_file():
            raise
        with contextlib.suppress(UserError):
            return load(older), older, f"warning: {error}; going on from {older} instead"
        raise


def load(path: Path) -> Content:
    """What `path` holds, on the CPU; no code in it is ever run.

    Raises:
        UserError: no such file, no checkpoint, a damaged one, or one with more in it than
            tensors and plain values.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        _check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about pickle protocols
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # a damaged file may raise anything in the reader
        if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
            raise UserError(
                f"{path}: refused: it holds more than tensors and plain values, and loading that "
                "could run its code; save its state_dict() alone, in the program that made it"
            ) from None
        reason = type(error).__name__
        raise UserError(
            f"{path}: no checkpoint, or a damaged one ({reason}); give a file that training wrote"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: no checkpoint: it holds a {type(content).__name__}")
    return content


def _check_archive(path: Path) -> None:
    """torch.load checks no sums, and a small deflated file could grow without bound."""
    if not zipfile.is_zipfile(path):
        return  # torch's format of before 1.6; its own reader checks what it can
    with zipfile.ZipFile(path) as archive:
        if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
            raise UserError(f"{path}: refused: its records are compressed, torch's never are")
        damaged = archive.testzip()
    if damaged is not None:
        raise UserError(f"{path}: damaged at {damaged}; use another checkpoint of the run")


def first_not_finite(content: Any, name: str = "") -> str | None:
    """The name of a tensor in `content` that holds nan or infinity; None where all are finite."""
    if isinstance(content, Tensor):
        bad = content.is_floating_point() and not bool(content.isfinite().all())
        return name if bad else None
    if isinstance(content, dict):
        for key, value in content.items():
            found = first_not_finite(value, f"{name}.{key}" if name else str(key))
            if found is not None:
                return found
    return None
