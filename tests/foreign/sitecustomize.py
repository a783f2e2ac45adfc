"""Python's start on a system that is not here: what Windows or macOS lacks is taken away.

PRETEND names the system, as in sys.platform, which the package alone sees: the libraries have parts
for each system that are not in this one's. Python imports this module first, in spawned processes too.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = [
    "tests.ranks", "cv2", "PIL.Image", "huggingface_hub.hf_api", "matplotlib.pyplot", "yaml",
    "tifffile", "tqdm.auto",
]  # fmt: skip
NO_MODULE = {"win32": ["fcntl", "grp", "pwd", "resource", "termios"], "darwin": []}
NO_SIGNAL = [
    "SIGALRM", "SIGBUS", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "alarm", "pthread_sigmask",
]  # fmt: skip
LINUX_ALONE = ["memfd_create", "posix_fallocate", "posix_fadvise", "sched_getaffinity"]
NO_FUNCTION = {
    "win32": [
        *(
            "fchmod", "fork", "forkpty", "geteuid", "getgid", "getpgid", "getuid", "killpg",
            "mkfifo",
        ),
        *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "pread", "register_at_fork", "set_blocking"),
        *("setsid", "statvfs", "sync", "uname", *LINUX_ALONE),
    ],
    "darwin": LINUX_ALONE,
}  # fmt: skip
_list, _link_of = os.listdir, os.readlink


def hide(name: str, module: Any) -> None:
    """Let a function find nothing of Linux's /proc and /sys."""
    real = getattr(module, name)

    def without_proc(path: Any, *args: Any, **how: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return real(path, *args, **how)

    setattr(module, name, without_proc)


def open_files() -> set[str]:
    """Return the paths of this process's open files."""
    found = set()
    for handle in _list("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(_link_of(f"/proc/self/fd/{handle}"))
    return found


def refuse_open(name: str) -> None:
    """Let a function refuse files that are open, as Windows does."""
    real = getattr(os, name)

    def refusing(*paths: Any, **how: Any) -> Any:
        for path in {os.path.realpath(path) for path in paths} & open_files():
            raise PermissionError(13, "being used by another process", path)
        return real(*paths, **how)

    setattr(os, name, refusing)


def refuse(module: Any, name: str, is_refused: Callable[..., bool], error: BaseException) -> None:
    """Let a function raise an error for some arguments."""
    real = getattr(module, name)

    def refusing(*args: Any, **how: Any) -> Any:
        if is_refused(*args, **how):
            raise error
        return real(*args, **how)

    setattr(module, name, refusing)


def opens_folder(path: Any, flags: int, *mode: int, **how: Any) -> bool:
    """Return whether a file to open is a folder; those are left that Python removes or writes to so here."""
    return flags == os.O_RDONLY and not how and Path(path).is_dir()


class Sys(ModuleType):
    """Python's sys, on another platform."""

    def __getattr__(self, name: str) -> Any:
        return os.environ["PRETEND"] if name == "platform" else getattr(sys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)


def show_platform() -> None:
    """Let the package's modules import another sys."""
    real, foreign = builtins.__import__, Sys("sys")

    def importing(name: str, names: Any = None, *args: Any, **how: Any) -> Any:
        is_ours = names is not None and names.get("__name__", "").startswith("unet_ddp")
        return foreign if name == "sys" and is_ours else real(name, names, *args, **how)

    builtins.__import__ = importing


def become(platform: str) -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    multiprocessing.set_start_method("spawn", force=True)
    for name in NO_MODULE[platform]:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in NO_FUNCTION[platform]:
        vars(os).pop(name, None)
    if platform == "win32":
        for name in NO_SIGNAL:
            vars(signal).pop(name)
        resource_tracker._HAVE_SIGMASK = False  # of processes that are spawned here
        for name in ("replace", "rename", "remove", "unlink"):
            refuse_open(name)
        refuse(os, "open", opens_folder, PermissionError(13, "Permission denied"))
        refuse(os, "kill", lambda _, number: number == 0, KeyboardInterrupt())  # CTRL_C_EVENT
        only_here = lambda *_, preexec_fn=None, **__: preexec_fn is not None  # noqa: E731
        refuse(subprocess.Popen, "__init__", only_here, ValueError("preexec_fn is not supported"))
    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
        hide(name, os)
    hide("open", io)
    show_platform()


if "PRETEND" in os.environ:
    become(os.environ["PRETEND"])
