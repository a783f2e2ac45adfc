"""Replace a file whole or not at all, and check that a folder is writable."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import IO

from unet_ddp.errors import BROKEN, FULL, UserError
from unet_ddp.files.closed import explain_absence as explain_absence
from unet_ddp.files.closed import read_errors as read_errors
from unet_ddp.files.completing import holds_back
from unet_ddp.files.output import complain as complain
from unet_ddp.storage import open_address, real_file, storage_of

_TEMPORARY = re.compile(r"\.(.+)\.(\d+)\.\w+\.tmp")  # .NAME.PROCESS.RANDOM.tmp
_unfinished: set[Path] = set()  # temporary files of this process, on any thread
_lock = RLock()  # reentrant: a signal may arrive while the main thread holds it


def as_path(text: str) -> Path:
    """Return the path of a file, or of an object at an address: that is fetched when it is opened."""
    if "://" in text or ".tar#" in text:  # the second: a file in an archive
        return open_address(text)
    return Path(text)


def is_address(text: object) -> bool:
    """Return whether a setting or path names something that is not on this machine."""
    return "://" in str(text) and not str(text).startswith("file://")


def as_local_path(text: str, flag: str) -> Path:
    """Return a path of this machine; an address is a UserError, which names `flag`."""
    path = as_path(text)
    if is_address(path):
        raise UserError(f"{flag} {text}: is an address; use a path on this machine")
    return path


@holds_back
@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary file in the folder of `path`; it replaces `path` if the block succeeds.

    Of an address it is in the system's temporary folder, and is uploaded at the end.
    The temporary file is new (O_EXCL, no symbolic link is followed) and its name can't be guessed.
    If the block raises, it is removed and `path` stays as it was. The folder is created. With
    `durable`, file and folder are flushed to the disk, so that a power cut loses neither.

    Raises:
        OSError: the file can't be written.
    """
    if is_address(path):
        with storage_of(path).replacing(path) as temporary:
            yield temporary
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        handle = make_temporary(temporary)
        try:
            yield temporary
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)  # Windows moves no open file
        temporary.replace(path)
    finally:
        remove_temporary(temporary)
    if durable and hasattr(os, "O_DIRECTORY"):  # nor does it open folders
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace `path` with `text` in UTF-8; surrogates of undecodable file names are kept."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(text.encode("utf-8", "surrogateescape"))


def refuse_special(path: Path) -> None:
    """Raise a UserError if `path` is a pipe, socket or device, which may block or never end."""
    if is_address(path):
        return
    mode = real_file(path).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is a pipe, socket or device, not a file; remove it")


def open_own(path: Path, mode: str) -> IO[str]:
    """Open a text file to append to it; a symbolic link in its place is an OSError."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    return open(path, mode, encoding="utf-8", opener=opener)


@contextmanager
def write_errors(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an OSError of writing `path` into a UserError of one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in (None, BROKEN, *FULL):  # as without permission: room is no remedy
            advice = re.sub("^(make room|free).*?(, or |$)", "", advice) or "make it writable"
        reason = f"{path}: can't be written: {error.strerror or error}"
        raise UserError("; ".join(filter(None, (reason, advice)))) from None


def check_new_folder(output: Path) -> None:
    """Refuse a folder that is not empty, or that can't be made, for ``--output``."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output}: already exists; use another --output")
    check_writable(output.parent, "--output")


@contextmanager
def replacing_folder(output: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `output`, which becomes it if the block succeeds: all or nothing."""
    with write_errors(output, "make room, or use another --output"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            temporary = Path(folder, output.name)
            temporary.mkdir()
            yield temporary
            temporary.replace(output)


def cache_folder(*, warns: bool = True) -> Path | None:
    """Return the folder of this user's caches, made if it can be; None if others may write to it.

    Files in such a folder can't be trusted. If this process `warns`, it prints a line about it, once.
    """
    root = os.environ.get("XDG_CACHE_HOME")  # platformdirs would move the runs there on macOS
    try:
        folder = (Path(root) if root else Path.home() / ".cache") / "unet_ddp"
    except RuntimeError:  # a user without home, as in containers
        folder = temporary_folder() / f"unet_ddp-{os.getuid()}"
    with suppress(OSError, AttributeError):  # who writes says so; Windows has no getuid
        folder.mkdir(0o700, parents=True, exist_ok=True)
        status, link = folder.stat(), folder.lstat()
        if {status.st_uid, link.st_uid} != {os.getuid()} or status.st_mode & 0o022:
            if warns:
                _warn_of_cache(folder)
            return None
    return folder


@cache
def _warn_of_cache(folder: Path) -> None:
    reason = f"{folder}: not used as cache, as other users own it or may write to it"
    complain(f"{reason}; remove it, or name a folder of your own with XDG_CACHE_HOME")


def temporary_folder() -> Path:
    """Return the folder for temporary files, that of TMPDIR if it is writable; a UserError if none is."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        tried = " nor ".join([*filter(None, [os.environ.get("TMPDIR")]), "/tmp"])
        advice = "mount a volume at /tmp, or set TMPDIR to a folder that you may write to"
        raise UserError(f"no temporary folder is writable, not {tried}: {advice}") from None


def identify_path(path: Path) -> tuple[object, ...]:
    """Return a key that all spellings of a path share; it need not exist."""
    if is_address(path):
        return (str(path),)
    with suppress(OSError):
        return (*path.parent.stat()[1:3], path.name)  # inode and device
    return os.path.realpath(path.parent), path.name


def check_no_input(outputs: Iterable[tuple[str, Path]], inputs: Iterable[tuple[str, Path]]) -> None:
    """Raise a UserError if an output (flag, path) would replace an input (kind, path)."""

    def keys(path: Path) -> list[tuple[object, ...]]:
        found = [identify_path(path)]
        if not is_address(path):
            with suppress(OSError):
                found.append(path.stat()[1:3])
        return found

    known = {key: f"{kind} {path}" for kind, path in inputs for key in keys(path)}
    for flag, path in outputs:
        for key in keys(path):
            if key in known:
                raise UserError(f"{flag} {path}: would replace the {known[key]}; name another file")


def check_writable(folder: Path, flag: str) -> None:
    """Raise a UserError unless `folder`, or the one it would be created in, can be written to."""
    if is_address(folder):
        storage_of(folder).check_writable(folder, flag)
        return
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        reason = f"{existing} is a file"
        if existing.is_dir():
            with tempfile.TemporaryFile(dir=existing):
                return
    except PermissionError:
        reason = "no permission"
    except OSError as error:
        reason = error.strerror or "?"
    raise UserError(f"{folder}: can't be written: {reason}; choose another folder with {flag}")


def make_writable(folder: Path, flag: str) -> None:
    """Create `folder` and check that it is writable, see `check_writable`."""
    check_writable(folder, flag)
    with write_errors(folder, f"choose another folder with {flag}"):
        folder.mkdir(parents=True, exist_ok=True)


def is_alive(process: int) -> bool:
    """Return whether the process with this id runs; a zombie does not."""
    if sys.platform == "win32":
        return True  # its kill(process, 0) would be Ctrl-C
    with suppress(OSError):
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return state.rpartition(")")[2].split()[0] != "Z"
    with suppress(OSError, OverflowError):
        os.kill(process, 0)
        return not Path("/proc/self").exists()  # a system without /proc
    return False


def make_temporary(path: Path, mode: int = 0o666) -> int:
    """Create a file, which must be new, and return its descriptor; a signal that ends the process removes it."""
    with _lock:  # no thread makes one when a signal removes them
        _unfinished.add(path)  # first: this very thread may be stopped when the file is there
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def remove_temporary(path: Path) -> None:
    """Remove `path` if it still exists, and forget it."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    with _lock:
        _unfinished.discard(path)


def remove_stale(files: Iterable[Path]) -> None:
    """Remove the temporary files that killed processes left of `files`."""
    known = {*files}
    for folder in {path.parent for path in known}:
        for temporary in folder.glob(".*.tmp"):
            found = _TEMPORARY.fullmatch(temporary.name)
            if found and folder / found[1] in known and not is_alive(int(found[2])):
                temporary.unlink(missing_ok=True)


@contextmanager
def handling(handler: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals in the block, without those that are ignored, as by nohup."""
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, restored in before.items():
            signal.signal(number, restored)


def _remove_and_exit(advice: str, number: int, frame: object) -> None:
    with _lock:  # no other thread begins a file after this
        # One process of a host says it; those of --nproc leave it to the one that started them.
        if os.environ.get("LOCAL_RANK", "0") == "0" and "UNET_DDP_NPROC" not in os.environ:
            with suppress(OSError):  # a closed terminal
                os.write(2, f"stopped; {advice}\n".encode())
        for path in [*_unfinished] * 2:  # a thread that opens one by its name makes it anew, once
            with suppress(OSError):
                path.unlink()
        os._exit(128 + number)


def exit_on_signals(advice: str = "continue with --skip-existing") -> AbstractContextManager[None]:
    """Return a context in which Ctrl-C, SIGTERM and SIGHUP end the process, and leave no temporary file."""
    hangup = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # Windows has none
    return handling(partial(_remove_and_exit, advice), signal.SIGINT, signal.SIGTERM, *hangup)


ended_by_sigterm = partial(handling, lambda number, frame: sys.exit(128 + number), signal.SIGTERM)
"""Context in which SIGTERM raises SystemExit: what is temporary is then removed."""
