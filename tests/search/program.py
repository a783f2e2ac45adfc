"""One start of the program on a disk that may fail, and what it left and said."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.ranks import call_main
from tests.search.disk import Disk, Fault
from unet_ddp.checkpoints.file import load
from unet_ddp.checkpoints.run_files import HEADS
from unet_ddp.errors import UserError

PROGRAM = "train"
FLAGS = [
    "--width", "1", "--batch-size", "8", "--workers", "0", "--device", "cpu",
    "--augmentation", "none", "--precision=float32",
]  # fmt: skip
LONGEST = 60  # seconds of a start
_contents: dict[str, Saved | None] = {}


class BrokenError(AssertionError):
    """A promise is broken."""


def signature(error: str) -> str:
    """Return what kind of promise was broken."""
    first = re.split(r": train |: TORCH|\[Errno", error.partition("\n")[0])[0]
    return re.sub(r"'[^']*/[^']*'|\S*/\S*|-?\d[\d.e-]*", "N", first)[:160]


def expect(is_kept: bool, message: str) -> None:
    """Raise a BrokenError unless a promise is kept."""
    if not is_kept:
        raise BrokenError(message)


class Saved(NamedTuple):
    """What a checkpoint says."""

    position: tuple[int, int]
    best: tuple[float, int]
    model: str


@dataclass(frozen=True)
class Start:
    """A start of the program."""

    name: str
    flags: tuple[str, ...]
    fault: Fault | None = None
    late: bool = False
    launcher: str | None = None
    status: int = 0
    out: str = ""
    err: str = ""
    killed: bool = False

    def __str__(self) -> str:
        how = f" [{self.fault}{', saves late' * self.late}]" if self.fault or self.late else ""
        prefix = f"TORCHELASTIC_RUN_ID={self.launcher} " if self.launcher else ""
        flags = " ".join(map(repr, self.flags))
        ended = "killed" if self.killed else f"exit {self.status}: {self.err.strip()[-600:]}"
        return f"{prefix}train {self.name!r} {flags}{how} -> {ended}"


def read(path: Path) -> Saved | None:
    """Return what a checkpoint says, by the program's own loader; None if it can't be read."""
    try:
        key = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
    if key not in _contents:
        _contents[key] = None
        with contextlib.suppress(UserError, KeyError, TypeError, AttributeError):
            content = load(path)
            digest = hashlib.sha256()
            for tensor in (content.get("ema") or content["model"]).values():
                digest.update(tensor.numpy().tobytes())
            at, best = content.get("position") or {"epoch": -1, "step": 0}, content["best"]
            _contents[key] = Saved(
                (at["epoch"], at["step"]), (best["score"], best["epoch"]), digest.hexdigest()
            )
    return _contents[key]


def run_program(
    root: Path, argv: list[str], plan: Start, note: Callable[[Path], None], number: int
) -> tuple[Start, Disk]:
    """Start the program below `root`; return how it ended, and the disk with its operations."""
    disk = Disk(root, plan.fault, late=plan.late, process=10_000_000 + number, on_rename=note)
    environment = {"XDG_CACHE_HOME": str(root / "cache")}
    environment |= {"TORCHELASTIC_RUN_ID": plan.launcher} if plan.launcher else {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment))
        stack.enter_context(mock.patch.object(tempfile, "tempdir", str(root / "tmp")))
        stack.enter_context(drawn_quickly())
        stack.enter_context(limited(LONGEST))
        stack.enter_context(disk.watching())
        try:
            status, out, err = call_main(PROGRAM, argv, str(root))
        except BaseException as error:
            if not disk.is_dead:
                raise BrokenError(f"{plan}: {type(error).__name__}: {error}") from error
            status, out, err = 0, "", ""
    return replace(plan, status=status, out=out, err=err, killed=disk.is_dead), disk


@contextlib.contextmanager
def drawn_quickly() -> Iterator[None]:
    """Have the report drawn without its charts: they take four of five parts of a start."""
    page = HEADS["report.html"].decode()
    with mock.patch("unet_ddp.extras.report.write.render", return_value=page):
        yield


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise an error in a block that hangs."""

    def hang(number: int, frame: Any) -> None:
        raise BrokenError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_metrics(path: Path) -> tuple[list[dict[str, str]], bool]:
    """Return the whole rows of metrics.csv, and whether there is more: a torn one."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    whole, _, rest = text.rpartition("\n")
    lines = list(csv.reader(whole.splitlines()))
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    good = [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]
    return good, bool(rest) or len(good) < len(rows)


def names_file(flags: Sequence[str]) -> str | None:
    """Return the FILE of --resume FILE."""
    after = dict(zip(flags, [*flags[1:], ""], strict=False)).get("--resume", "")
    return after if after and not after.startswith("-") else None


Advice = tuple[str, str, list[str], str]
"""What a message says to do: in words, the run, the flags, and a file to remove."""


def find_advice(start: Start) -> Iterator[Advice]:
    """Yield each thing that a message says to do."""
    text = start.err.strip().removeprefix("error: ").replace(r"\n", "\n")  # in a name
    said = re.split(r"; |: (?=continue|delete|leave|free|make)", text, maxsplit=1)[-1]
    file, flags, name = text.split(":")[0], list(start.flags), start.name
    source = names_file(flags)
    plain = [flag for flag in flags if flag not in ("--resume", source)]
    begun = plain if "start a new run with" in text else flags
    if re.search(r"delete it(?! with)|move it away", said):
        yield "delete it", name, flags, file
    if re.search(r"rename (it|them)", text):
        yield "rename it", name, flags, text.split(": ")[0]
    if re.search(r"free some|make room|make it writable", said):
        yield "free some space", name, flags, ""
    if re.search(r"without --resume", said):
        yield "without --resume", name, plain, ""
    if re.search(r"leave the flag out", said):
        names = re.findall(r"(\w+) \S+ -> ", text)
        out = [flag for flag in flags if flag.split("=")[0][2:].replace("-", "_") not in names]
        yield "leave the flag out", name, out, ""
    if found := re.search(r"leave (--[\w-]+) out", said):
        yield found[0], name, [flag for flag in flags if flag.split("=")[0] != found[1]], ""
    if found := re.search(r"(?:with|use) --resume(?: (\S*\.pt))?", said):
        yield found[0], name, [*plain, "--resume", *filter(None, found.groups())], ""
    if re.search(r"(?:with|use|and) --overwrite", said):
        yield "use --overwrite", name, [*begun, "--overwrite"], ""
    if "--load" in said:
        named = re.search(r"--load (.*?\.pt) and --exp-name", text)
        weights = (
            named[1]
            if named
            else source or (file if file.endswith(".pt") else f"checkpoints/{name}/last.pt")
        )
        to = "another" if "and --exp-name" in said else name
        yield "--load", to, [*plain, "--load", weights], ""
    elif re.search(r"folder with .*--(exp-name|checkpoints)|--exp-name NAME", said):
        yield "--exp-name NAME", "another", begun, ""
