"""Hostile homes: python tests/homes.py FOLDER HOME ... runs the quick start on machines that lack something.

Each command is a process of its own, which enters the home first. It prints what is wrong, and nothing if all is
as it should be: a command works, or says in one line why it can't.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

_NAMESPACE, _NETWORK = 0x00020000, 0x40000000  # CLONE_NEWNS, CLONE_NEWNET
READ_ONLY, _NO_SUID, BIND, REMOUNT, _PRIVATE = 1, 2, 4096, 32, 1 << 18 | 1 << 14
NOBODY = 54321  # an id without a name
LONG = "long" * 25
LIMIT = 60  # seconds of a command
TRAIN = [
    "train", "--images", "imgs", "--masks", "masks", "--width", "2", "--epochs", "1",
    "--batch-size", "2", "--device", "cpu", "--precision", "float32", "--augmentation", "none",
    "--checkpoints", "out/new", "--timeout", "100",
]  # fmt: skip
COMMANDS = {
    "doctor": ["doctor", "--images", "imgs", "--masks", "masks"],
    "train": [*TRAIN, "--workers", "1"],
    "predict": [
        "predict", "imgs", "--model", "best.pt", "--overlay", "-o", "out/predicted", "--device",
        "cpu",
    ],
    "evaluate": [
        "evaluate", "--model", "best.pt", "--images", "imgs", "--masks", "masks", "--device",
        "cpu", "--workers", "1", "-o", "out/scores",
    ],
}  # fmt: skip
WITHOUT_READERS = {
    "train": [*TRAIN, "--workers", "0"],
    "evaluate": [*COMMANDS["evaluate"], "--workers", "0"],
}
WITH_RANKS = {"train": [*TRAIN, "--workers", "0", "--nproc", "2"]}
IMPORTED = (  # once for all commands, which are forked
    "unet_ddp.commands.train",
    "unet_ddp.commands.evaluate",
    "unet_ddp.extras.report.write",
    "albumentations",
    "tensorboard",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "tyro",
)
RESULTS = {
    "doctor": [],
    "train": ["new/best.pt", "new/last.pt", "new/metrics.csv", "new/config.yaml"],
    "predict": ["predicted/größe 1_mask.png"],
    "evaluate": ["scores"],
}


@dataclass(frozen=True)
class Home:
    """A machine that lacks something."""

    enter: Callable[[Path], None]
    """Makes this process live in it, at the folder."""
    said: dict[str, str] = field(default_factory=dict)
    """What the one line of a command must contain that can't work here; all others must work."""
    commands: dict[str, list[str]] = field(default_factory=lambda: COMMANDS)
    environment: dict[str, str] = field(default_factory=dict)
    """What Python reads at its start: the command is one of its own."""


def call(name: str, *arguments: object) -> None:
    """Call a function of the system's library; its error is an OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    texts = [each.encode() if isinstance(each, str) else each for each in arguments]
    if function(*texts) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def mount(
    source: str | None, target: Path | str, kind: str | None, flags: int, data: str | None = None
) -> None:
    call("mount", source, str(target), kind, ctypes.c_ulong(flags), data)


def own_mounts() -> None:
    call("unshare", _NAMESPACE)
    mount(None, "/", None, _PRIVATE)


def read_only_root(folder: Path, *, works_in_root: bool = True) -> None:
    """Only FOLDER/out can be written to, as a volume of a container."""
    own_mounts()
    out = folder / "out"
    mount(str(out), out, None, BIND)
    mount(None, "/", None, REMOUNT | READ_ONLY | BIND)
    if Path("/dev/shm").is_mount():
        mount(None, "/dev/shm", None, REMOUNT | READ_ONLY | BIND)
    os.environ.pop("TMPDIR", None)
    os.environ["HOME"] = "/root"
    os.environ.pop("XDG_CACHE_HOME", None)


def read_only_root_with_tmp(folder: Path) -> None:
    os.environ["TMPDIR"] = str(folder / "out")
    hold = os.environ["TMPDIR"]
    read_only_root(folder)
    os.environ["TMPDIR"] = hold


def long_volume(folder: Path) -> None:
    """No temporary folder but one of a long name."""
    place = folder / "out" / LONG
    place.mkdir()
    read_only_root(folder)
    os.environ["TMPDIR"] = str(place)


def long_tmpdir(folder: Path) -> None:
    (folder / "out" / LONG).mkdir()
    os.environ["TMPDIR"] = str(folder / "out" / LONG)


def full_tmpdir(folder: Path) -> None:
    place = folder / "out" / "full"
    place.mkdir()
    own_tmpfs(str(place), "size=4k,nr_inodes=2")(folder)
    os.environ["TMPDIR"] = str(place)


def own_tmpfs(place: str, options: str) -> Callable[[Path], None]:
    def enter(folder: Path) -> None:
        own_mounts()
        mount("tmpfs", place, "tmpfs", 0, options)

    return enter


def read_only_folder(place: str) -> Callable[[Path], None]:
    def enter(folder: Path) -> None:
        own_mounts()
        path = folder / place
        mount(str(path), path, None, BIND)
        mount(None, path, None, REMOUNT | READ_ONLY | BIND)

    return enter


def without_names(folder: Path) -> None:
    """No /etc/hosts and no server of names."""
    own_mounts()
    for name in ("hosts", "resolv.conf"):
        mount("/dev/null", f"/etc/{name}", None, BIND)


def without_loopback(folder: Path) -> None:
    call("unshare", _NETWORK)


def show_python() -> None:
    """Let every user find Python's own files, the packages and this project, which may be in the home of one."""
    own_mounts()
    handles: dict[Path, list[tuple[Path, int]]] = {}  # by the outermost folder that is closed
    for place in {Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[1]}:
        closed = [path for path in reversed(place.parents) if not path.stat().st_mode & 0o001]
        if closed:
            handles.setdefault(closed[0], []).append((place, os.open(place, os.O_RDONLY)))
    for folder, shown in handles.items():
        mount("tmpfs", folder, "tmpfs", 0, "mode=755")
        for place, handle in shown:
            place.mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{handle}", place, None, BIND)
            os.close(handle)


def become_nobody(folder: Path) -> None:
    show_python()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)


def nobody_with_limit(folder: Path) -> None:
    become_nobody(folder)
    limit("NPROC", 12)(folder)


def data_of_others(folder: Path) -> None:
    become_nobody(folder)
    for name in ("imgs", "masks"):
        (folder / name).chmod(0o555)
    folder.chmod(0o555)


def limit(name: str, value: int) -> Callable[[Path], None]:
    def enter(folder: Path) -> None:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    return enter


def jump_clock(folder: Path) -> None:
    """The clock is set to another day again and again."""
    now, days = time.time, random.Random(0)
    time.time = lambda: now() + 86400 * days.randint(-400, 400)  # type: ignore[assignment]


def environment(**changed: str | None) -> Callable[[Path], None]:
    def enter(folder: Path) -> None:
        for name, value in changed.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    return enter


def close(number: int) -> Callable[[Path], None]:
    """As a daemon has it."""

    def enter(folder: Path) -> None:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python has it then

    return enter


def broken_pipe(folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def umask(value: int) -> Callable[[Path], None]:
    return lambda folder: [os.umask(value), None][1]


_ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
_NO_TMP = {
    "train": "no temporary folder is writable",
    "evaluate": "no temporary folder is writable",
}
HOMES = {
    "plain": Home(lambda folder: None),
    "no HOME": Home(environment(HOME=None, XDG_CACHE_HOME=None)),
    "HOME that can't be written to": Home(environment(HOME="/proc", XDG_CACHE_HOME=None)),
    "HOME is a file": Home(environment(HOME="/etc/passwd", XDG_CACHE_HOME=None)),
    "a cache that can't be written to": Home(environment(XDG_CACHE_HOME="/proc/none")),
    "read-only root": Home(read_only_root, _NO_TMP),
    "read-only root, no readers": Home(read_only_root, _NO_TMP, WITHOUT_READERS),
    "read-only root, ranks": Home(read_only_root, _NO_TMP, WITH_RANKS),
    "read-only root with TMPDIR": Home(
        read_only_root_with_tmp, {"train": "/dev/shm", "evaluate": "/dev/shm"}
    ),
    "long TMPDIR": Home(long_tmpdir),
    "long TMPDIR, ranks": Home(long_tmpdir, commands=WITH_RANKS),
    "long TMPDIR and no other": Home(long_volume, {"train": "TMPDIR", "evaluate": "TMPDIR"}),
    "TMPDIR that does not exist": Home(environment(TMPDIR="/none/such")),
    "TMPDIR is a file": Home(environment(TMPDIR="/etc/passwd")),
    "full TMPDIR": Home(full_tmpdir),
    "no room in /dev/shm": Home(
        own_tmpfs("/dev/shm", "size=4k,nr_inodes=2"), {"train": "/dev/shm", "evaluate": "/dev/shm"}
    ),
    "little room in /dev/shm": Home(
        own_tmpfs("/dev/shm", "size=64k"),
        {"train": "/dev/shm", "evaluate": "shared memory is full"},
    ),
    "no room in /dev/shm, no readers": Home(
        own_tmpfs("/dev/shm", "size=4k,nr_inodes=2"), commands=WITHOUT_READERS
    ),
    "ASCII": Home(lambda folder: None, environment=_ASCII),
    "POSIX locale": Home(lambda folder: None, environment={"LC_ALL": "POSIX"}),
    "a nameless user": Home(become_nobody),
    "data of others": Home(data_of_others),
    "read-only data": Home(read_only_folder("imgs")),
    "no names of hosts": Home(without_names),
    "no names of hosts, ranks": Home(without_names, commands=WITH_RANKS),
    "no loopback": Home(without_loopback),
    "no loopback, ranks": Home(without_loopback, {"train": "127.0.0.1"}, WITH_RANKS),
    "64 files": Home(limit("NOFILE", 64)),
    "24 files": Home(limit("NOFILE", 24), {"train": "open files"}),
    "few processes": Home(nobody_with_limit),
    "files of 64 KiB": Home(
        limit("FSIZE", 1 << 16), {"train": "File too large", "evaluate": "File too large"}
    ),
    "4 GiB of addresses": Home(limit("AS", 4 << 30)),
    "no locked memory": Home(limit("MEMLOCK", 0)),
    "a small stack": Home(limit("STACK", 1 << 20)),
    "no core files": Home(limit("CORE", 0)),
    "a clock that jumps": Home(jump_clock),
    "closed input": Home(close(0)),
    "closed output": Home(close(1)),
    "closed errors": Home(close(2)),
    "output without a reader": Home(broken_pipe),
    "umask 077": Home(umask(0o077)),
}


def make(folder: Path) -> None:
    """Write a set of six pairs, whose names need more than ASCII, and a network that was trained on it."""
    for name in ("imgs", "masks", "out"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0)
    for k in range(6):
        mask = np.zeros((16, 24), np.uint8)
        mask[2 + k : 12, 3 + k : 20] = 255
        image = values.integers(0, 60, (16, 24, 3)) + mask[..., None] // 2
        Image.fromarray(mask).save(folder / "masks" / f"größe {k}.png")
        Image.fromarray(image.astype(np.uint8)).save(folder / "imgs" / f"größe {k}.png")


def run(place: Home, words: list[str], folder: Path) -> tuple[int, float, str, str]:
    """Return the status, seconds, output and errors of a command there."""
    streams = [folder / "said.out", folder / "said.err"]
    handles = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666) for path in streams]
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, handle in enumerate(handles, start=1):
            os.dup2(handle, number)
            os.close(handle)
        os._exit(live(place, words, folder))
    for handle in handles:
        os.close(handle)
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() - began > LIMIT:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)
    status = os.waitstatus_to_exitcode(found[1])
    out, err = (path.read_text(encoding="utf-8", errors="replace") for path in streams)
    return status, time.monotonic() - began, out, err


def live(place: Home, words: list[str], folder: Path) -> int:
    """Enter a home and run a command there; return its status, as Python does at its end."""
    try:
        os.chdir(folder)
        place.enter(folder)
        tempfile.tempdir = None
        if place.environment:
            command = [sys.executable, "-m", "unet_ddp", *words]
            os.execve(sys.executable, command, {**os.environ, **place.environment})
        sys.argv = ["unet_ddp", *words]
        runpy.run_module("unet_ddp", run_name="__main__")
        status: object = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return status if isinstance(status, int) else 1


def find_faults(name: str, folder: Path) -> list[str]:
    """Return what is wrong with the commands in a home."""
    faults = []
    place = HOMES[name]
    for command, words in place.commands.items():
        shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
        status, seconds, out, err = run(place, words, folder)
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        expected = place.said.get(command)
        problem = ""
        if seconds > LIMIT:
            problem = f"hangs for {seconds:.0f} s"
        elif "Traceback" in err + out:
            problem = "a traceback"
        elif expected is None and status != 0:
            problem = f"status {status}"
        elif expected is not None and (
            status not in (1, 2) or len(lines) != 1 or expected not in lines[0]
        ):
            problem = f"status {status}, no line about {expected}"
        elif expected is None:
            lost = [path for path in RESULTS[command] if not (folder / "out" / path).exists()]
            problem = f"no {', '.join(lost)}" if lost else ""
        if problem:
            faults.append(
                f"{name}: {command}: {problem}: {' | '.join(err.splitlines()[-3:])[-500:]}"
            )
        if "SHOW" in os.environ:
            last = " | ".join(err.splitlines()[-2:])
            print(f"{name}: {command}: {status} {seconds:.1f} s: {last[-300:]}", flush=True)
    return faults


def can_enter(place: Home, folder: Path) -> bool:
    """Return whether this user may make such a home."""
    child = os.fork()
    if child:
        is_possible = os.waitpid(child, 0)[1] == 0
        shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
        return is_possible
    status = 1
    try:
        place.enter(folder)
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:] or [*HOMES]
    sys.path.insert(0, str(Path.cwd()))
    for module in IMPORTED:
        importlib.import_module(module)
    make(folder)
    if not (folder / "best.pt").exists():
        run(HOMES["plain"], WITHOUT_READERS["train"], folder)
        shutil.copy(folder / "out/new/best.pt", folder)
    possible = [name for name in names if can_enter(HOMES[name], folder)]
    faults = [fault for name in possible for fault in find_faults(name, folder)]
    print(json.dumps({"faults": faults, "impossible": [*{*names} - {*possible}]}))


if __name__ == "__main__":
    main()
