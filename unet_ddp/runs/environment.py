"""The program, the machine and the command of a start, as run.json and checkpoints have them."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from unet_ddp import __version__
from unet_ddp.checkpoints.file import Content
from unet_ddp.errors import hide_secrets

_PACKAGES = "torch", "torchvision", "segmentation-models-pytorch", "albumentations", "numpy"
_PATIENCE = 5  # seconds for git, which may look at many files on slow storage


def now() -> str:
    """Return the time in seconds, with the offset of this machine's zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def describe_start(device: torch.device) -> Content:
    """Return the facts of this start as plain values; None for what is not known."""
    commit, has_changes = read_commit()
    return {
        "date": now(),
        "unet_ddp": __version__,
        "command": hide_secrets(shlex.join(sys.argv)),
        "commit": commit,
        "has_changes": has_changes,
        "folder": str(Path.cwd()),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "packages": {**_find_versions()},
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


@cache  # 10 ms for each, and a notebook or a search has many runs
def _find_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for name in versions:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def read_commit() -> tuple[str | None, bool | None]:
    """Return git's commit of the working directory, and whether tracked files differ from it.

    Both are None outside a repository or before its first commit, without git, and if it takes too long.
    """
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "status", "--branch"]
    command += ["--porcelain=v2", "--untracked-files=no", "--ignore-submodules=dirty"]
    try:
        found = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_PATIENCE,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None, None
    head, *lines = found.stdout.decode(errors="replace").splitlines()
    commit = head.removeprefix("# branch.oid ")
    if commit == "(initial)":  # there is none yet
        return None, None
    return commit, any(not line.startswith("#") for line in lines)
