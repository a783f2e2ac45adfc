"""Checkpoint files: replaced whole or not at all, and read without running any code."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unet_ddp.checkpoints.run_files import (
    advise_on_replaced,
    check_archive,
    drop_previous,
    keep_twice,
)
from unet_ddp.errors import RunError, UserError, shorten
from unet_ddp.files import as_path, explain_absence, read_errors, replacing
from unet_ddp.files.contents import advise_on, describe_content
from unet_ddp.network.state_dicts import is_whole, with_versions

FORMAT = 1
_IS_DIRECTORY = 0x10  # of a zip record's external attributes

Content = dict[str, Any]
"""Tensors and plain values."""


def save(path: Path, content: Content, *, keep_previous: bool = False) -> None:
    """Write `content` to `path` such that a kill at any moment leaves the old file or the new one.

    The archive contains a checksum of every record. With `keep_previous`, the file that is replaced
    is kept, as ``last.1.pt`` next to ``last.pt``.

    Raises:
        OSError: it can't be written; the old file is as it was.
        RuntimeError: torch's form of the same.
    """
    if not path.parent.is_dir():  # removed during the run: not created again without its lock
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    with replacing(path, durable=True) as temporary:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())  # may fail: then last.1.pt must still be what it was
        if keep_previous and path.exists():
            keep_twice(path, previous(path))


def save_all(folder: Path, files: dict[str, Content], *, keep_previous: bool = True) -> str:
    """Write checkpoints by name, in this order, and take those that are written out of `files`.

    Returns:
        Why the first of those that are left could not be written; empty if all are.

    Raises:
        RunError: a weight is not finite; nothing is written.
    """
    for name, content in files.items():
        bad = find_not_finite({key: content.get(key) for key in ("model", "ema", "loss")})
        if bad is not None:
            raise RunError(
                f"{folder / name}: not written, as {bad} contains nan or infinity; the files saved "
                "before are fine: continue with --resume and a lower --lr"
            )
    refusal, names = "", list(files)
    for name in names:
        try:
            if name.startswith("epoch_"):  # of the others the start has made sure
                check_archive(folder, name, leaves_room="last.pt" in names)
            save(folder / name, files[name], keep_previous=keep_previous and name == "last.pt")
        except UserError as error:  # the user has an epoch_0005.pt: the others go on
            refusal = str(error)
            continue
        except (OSError, RuntimeError) as error:
            own = error.__context__  # of torch's error, which says at which place in the file
            cause = own if isinstance(own, OSError) else error
            if keep_previous and name == "last.pt" and drop_previous(folder, cause):
                return save_all(folder, files, keep_previous=False)
            return f"{folder / name}: can't be written ({' '.join(str(cause).split())[:120]})"
        del files[name]
    return refusal


def previous(path: Path) -> Path:
    """Return the path of the generation before `path`: last.1.pt for last.pt."""
    return path.with_name(f"{path.stem}.1{path.suffix}")


def load_or_previous(path: Path) -> tuple[Content, Path, str]:
    """Return the content of `path`, or of the generation before it if `path` is corrupt.

    Returns:
        The content, the file it is from, and a warning (empty if `path` is fine).

    Raises:
        UserError: neither can be read.
    """
    older = previous(path)
    try:
        return load(path), path, ""
    except UserError as error:
        if older.is_file():
            with contextlib.suppress(UserError):
                return load(older), older, f"warning: {error}; using {older} instead"
        raise


@read_errors()
def load(path: Path, *, mapped: bool = False) -> Content:
    """Return the content of a file or an object, on the CPU; no code in it is ever run.

    With `mapped`, tensors are read when they are used, and their checksums are not checked.

    Raises:
        UserError: no checkpoint, a corrupt one, or one with more than tensors and plain values.
    """
    path = as_path(str(path))  # the copy of an object is removed on return
    if not path.is_file():
        raise explain_absence(path, f"checkpoint not found{advise_on_replaced(path)}")
    try:
        _check_archive(path, checksums=not mapped)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about pickle protocols
            content = _read(path, mapped)
        _check_tensors(path, content)
    except UserError:
        raise
    except Exception as error:  # the reader may raise anything for a corrupt file
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            raise UserError(f"{path}: the memory does not suffice to read it; free some") from None
        if isinstance(error, pickle.UnpicklingError) and "global" in str(error).lower():
            raise UserError(
                f"{path}: refused: it contains more than tensors and plain values, and loading that "
                "could run its code; save its state_dict() alone, in the program that wrote it"
            ) from None
        kind = describe_content(path)
        advice = advise_on(kind, "use a file that training wrote")
        raise UserError(
            f"{path}: no checkpoint, or corrupt or truncated: it is {kind}; {advice}"
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: no checkpoint: it contains {shorten(content)}; use a file that training wrote"
        )
    return content


def _read(path: Path, mapped: bool) -> Any:
    with path.open("rb") as file:
        is_safetensors = file.read(9)[8:] == b"{"
    if is_safetensors:
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)


def _check_archive(path: Path, *, checksums: bool) -> None:
    """Check the checksums, which torch.load does not, and that no record is compressed.

    A small compressed file could grow without bound.
    """
    if not zipfile.is_zipfile(path):
        return  # torch's format before 1.6; its own reader checks what it can
    with zipfile.ZipFile(path) as archive:
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise UserError(
                f"{path}: a TorchScript file; save the state_dict() in the program that wrote it"
            )
        if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
            raise UserError(f"{path}: refused: its records are compressed, torch's never are")
        corrupt = archive.testzip() if checksums else None
        # Such a flag is a flipped bit: torch would read a directory, and with it zeros, as weights.
        flagged = [r.filename for r in archive.infolist() if r.external_attr & _IS_DIRECTORY]
    for name in (corrupt, *flagged):
        if name is not None:
            raise UserError(f"{path}: corrupt at {name}; use another checkpoint of the run")


def _check_tensors(path: Path, content: object) -> None:
    """Check that each tensor is as large in the file as in memory: expanded ones could be of any size."""
    pending, seen = [content], set[int]()
    while pending:
        item: Any = pending.pop()
        if id(item) in seen:  # lists may contain each other, and again
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, (list, tuple)):
            pending += item
        elif isinstance(item, Tensor) and (item.device.type != "cpu" or not is_whole(item)):
            shape = shorten(list(item.shape))
            raise UserError(
                f"{path}: refused: a tensor {shape} whose numbers are not all in the file; save it "
                "again with tensor.contiguous()"
            )


def find_not_finite(content: Any, name: str = "") -> str | None:
    """Return the name of a tensor in `content` that contains nan or infinity; None if none does."""
    if isinstance(content, Tensor):
        is_bad = content.is_floating_point() and not bool(content.isfinite().all())
        return name if is_bad else None
    if isinstance(content, dict):
        for key, value in content.items():
            found = find_not_finite(value, f"{name}.{key}" if name else str(key))
            if found is not None:
                return found
    return None


def copy_to_host(content: Any) -> Any:
    """Return a copy of `content` in host memory, which later steps do not change.

    A tensor that occurs twice is copied once, and a GPU is waited for once.
    """
    copies: dict[int, Tensor] = {}
    has_gpu = False

    def copy(item: Any) -> Any:
        nonlocal has_gpu
        if isinstance(item, Tensor):
            if item.is_cuda:
                has_gpu = True
            if id(item) not in copies:
                copies[id(item)] = item.detach().to("cpu", copy=True, non_blocking=True)
            return copies[id(item)]
        if isinstance(item, dict):
            return with_versions({key: copy(value) for key, value in item.items()}, item)
        if isinstance(item, (list, tuple)):
            return type(item)(map(copy, item))
        return item

    copied = copy(content)
    if has_gpu:
        torch.cuda.synchronize()
    return copied
