"""Cases in forked processes with limits, and the verdict on how each ended."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS, BYTES = 10.0, 2**30
SAME, LINE = "as valid", "one line"
TRACEBACK, HANG, MEMORY, SILENT, UNCLEAR = "TRACEBACK", "HANG", "MEMORY", "SILENT", "UNCLEAR"
FAULTS = (TRACEBACK, HANG, MEMORY, SILENT, UNCLEAR)
"""UNCLEAR: a crash, a failure that says nothing, or one that says several lines."""

_OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|[Uu]nable to allocate|can't allocate|out of mem"
)
# The folder of the checkout: it may be called unet_ddp, too.
_ROOT = re.escape(str(Path(__file__).parents[2]))
_PLACE = re.compile(rf'File "{_ROOT}/((?:unet_ddp/|train|predict)[^"]*)", line (\d+)')
_THREAD = re.compile(r"(Thread|Current thread) 0x")
_NOT_BUILT = 98  # exit status
_LISTS_ALL = re.compile(r"^unfit to train: |^\d+ of \d+ images could not be predicted$")
_SILENT, _LOG = "silent: ", "log.txt"


@dataclass(frozen=True)
class Case:
    """A command, and how to check what it did."""

    main: Callable[[list[str]], Any]
    argv: list[str]
    find_invalid: Callable[[], str] = str
    """Says afterwards why there should be no output; empty if there may be."""


Build = Callable[[Path], Case]
"""Writes the files of a case into a folder."""


@dataclass(frozen=True)
class Outcome:
    """The end of a case."""

    verdict: str
    line: str
    """Last line that it wrote."""
    seconds: float
    bytes: int
    """Most memory at any time, above that of the process it was forked from."""
    text: str


@dataclass(frozen=True)
class _Child:
    name: str
    process: int
    file: int  # descriptor of the process
    folder: Path
    started: float


def run_cases(
    cases: Iterable[tuple[str, Build]], home: Path, *, limit: float = SECONDS, keep: bool = False
) -> Iterator[tuple[str, Outcome]]:
    """Yield each case's name and outcome, as they end; two processes run at a time.

    Args:
        cases: their names, and how to build them.
        home: each runs in a folder of its name in this one.
        limit: seconds that each may take.
        keep: keep the folders.
    """
    waiting = iter(cases)
    running: dict[int, _Child] = {}
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    while True:
        while len(running) < 2 and (following := next(waiting, None)) is not None:
            child = _fork(*following, home, limit)
            running[child.file] = child
        if not running:
            return
        oldest = min(child.started for child in running.values())
        ended, _, _ = select.select(list(running), [], [], max(0, oldest + limit - time.time()))
        late = [file for file, child in running.items() if time.time() - child.started >= limit]
        for file in {*ended, *late}:
            child = running.pop(file)
            yield child.name, _collect(child, base, is_late=file not in ended)
            if not keep:
                shutil.rmtree(child.folder, ignore_errors=True)


def _fork(name: str, build: Build, home: Path, limit: float) -> _Child:
    folder = home / name
    folder.mkdir()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        try:
            faulthandler.dump_traceback_later(0.9 * limit)  # where it hangs
            _run(build, folder)
        finally:
            os._exit(99)
    return _Child(name, process, os.pidfd_open(process), folder, time.time())


def _run(build: Build, folder: Path) -> None:
    """Run a case and exit with its status; never returns."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(folder / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    os.chdir(folder)
    try:
        case = build(folder)
    except BaseException:
        traceback.print_exc()
        os._exit(_NOT_BUILT)
    _limit_memory()
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    status: Any = 1
    try:
        status = case.main(case.argv) or 0
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        traceback.print_exc()
    if status == 0 and (reason := _find_invalid(case)):
        print(f"{_SILENT}{reason}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


def _find_invalid(case: Case) -> str:
    try:
        return case.find_invalid()
    except Exception as error:  # what can't even be checked
        return f"{type(error).__name__}: {error}"


def _limit_memory() -> None:
    text = Path("/proc/self/status").read_text()
    found = re.search(r"VmData:\s+(\d+) kB", text)
    assert found is not None
    limit = int(found[1]) * 1024 + BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _collect(child: _Child, base: int, *, is_late: bool) -> Outcome:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process, signal.SIGKILL)  # with all that it has started
    _, status, usage = os.wait4(child.process, 0)
    os.close(child.file)
    log = child.folder / _LOG
    text = log.read_text(errors="backslashreplace") if log.exists() else ""
    grown = max(0, usage.ru_maxrss * 1024 - base)
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    code = os.waitstatus_to_exitcode(status)
    if code == _NOT_BUILT:
        raise RuntimeError(f"{child.name}: the fuzzer itself failed\n{text}")
    verdict = HANG if is_late else judge(code, lines, grown)
    return Outcome(verdict, _describe(verdict, lines), time.time() - child.started, grown, text)


def _describe(verdict: str, lines: list[str]) -> str:
    """Return the line that says most, and the place in the program's code."""
    errors = [line for line in lines if line.startswith("error:")]
    line = (errors if verdict == LINE else lines or [""])[-1]
    if verdict == HANG:  # the main thread is last, and its most recent call first
        threads = [n for n, text in enumerate(lines) if _THREAD.match(text)]
        lines, line = lines[: threads[-1] : -1] if threads else [], ""
    places = [found for text in lines if (found := _PLACE.search(text))]
    return " ".join([line[-200:], *(f"({place[1]}:{place[2]})" for place in places[-1:])]).strip()


def judge(status: int, lines: list[str], grown: int) -> str:
    """Return the verdict on a process that has ended."""
    errors = [line for line in lines if line.startswith("error:")]
    if grown > BYTES or any(map(_OUT_OF_MEMORY.search, lines)):
        return MEMORY
    if any(line.startswith("Traceback") for line in lines):
        return TRACEBACK
    if any(line.startswith(_SILENT) for line in lines):
        return SILENT
    if status == 0 and not errors:
        return SAME
    lists_all = any(map(_LISTS_ALL.search, lines))
    return LINE if status in (1, 2) and (len(errors) == 1 or (errors and lists_all)) else UNCLEAR
