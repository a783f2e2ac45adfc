"""What is promised of a run's folder, and its check after each start of the program."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import data_flags
from tests.search.checks import Run, check_run
from tests.search.disk import REFUSED, Fault
from tests.search.program import (
    FLAGS,
    Advice,
    BrokenError,
    Saved,
    Start,
    expect,
    find_advice,
    names_file,
    read,
    run_program,
)  # fmt: skip

NOT_OF_RUNS = ("tmp", "cache", "rescue")


class World:
    """A folder in which a user starts runs, and what was promised."""

    def __init__(self, root: Path, data: Path) -> None:
        self.root, self.data = root, data
        self.runs: dict[str, Run] = {}
        self.own: dict[Path, bytes | None] = {}  # files of the user's; None for a folder
        self.starts: list[Start] = []
        self.followed: set[str] = set()
        self.is_broken = False
        self.acts: list[tuple[Any, ...]] = []  # what was done, to be done again by `replay`
        for name in ("tmp", "cache"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def folder(self, name: str) -> Path:
        return self.root / "checkpoints" / name

    def files(self, name: str) -> list[Path]:
        """Return the files of the run `name` that are not the user's."""
        found = self.folder(name).iterdir() if self.folder(name).is_dir() else ()
        return sorted(path for path in found if path.is_file() and path not in self.own)

    def command(self, name: str, flags: Sequence[str]) -> list[str]:
        place = [f"--exp-name={name}"] if name and not names_file(flags) else []
        return [*data_flags(self.data), *FLAGS, *place, *flags]

    # -- a start ----------------------------------------------------------------------------------

    def start(self, name: str, flags: Sequence[str], fault: Fault | None = None, *,
              late: bool = False, launcher: str | None = None) -> Start:  # fmt: skip
        """Start the program, and check all that is promised."""
        self.acts.append(("start", name, list(flags), fault, late, launcher))
        run = self.runs.setdefault(name, Run())
        before, noted = self._others(name), list[Saved]()
        files = ("last.pt", "last.1.pt", ".replaced/last.pt", ".replaced/last.1.pt")
        found = [read(self.folder(name) / file) for file in files]
        is_aside = not (self.folder(name) / "last.pt").exists()  # otherwise another has been saved
        there = found if is_aside else found[:2]
        promised = max((s.position for s in there if s and run.position), default=None)

        def note(path: Path) -> None:
            is_last = path == self.folder(name) / "last.pt"
            if is_last and (saved := read(path)) and saved != found[2]:  # moved back
                noted.append(saved)
                run.follow(saved)

        plan = Start(name, tuple(flags), fault, late, launcher)
        start, _ = run_program(self.root, self.command(name, flags), plan, note, len(self.starts))
        self.starts.append(start)
        for path in run.spoiled.copy():
            file = self.folder(name) / path
            if not file.is_file() or file.read_bytes() != run.spoiled[path]:
                run.has_lost_best |= path == "best.pt"  # the best of what is left is in its place
                del run.spoiled[path]
        run.has_patience |= "--patience=1" in flags
        self._settle(run, start, noted)
        with self.explained():
            self._check_status(start)
            self._check_begin(start, promised, noted)
            self._check_user_files(before)
            check_run(run, self.folder(name), set(self.own), start)
            self._follow(start)
        return start

    # -- what the user does besides ---------------------------------------------------------------

    def place(self, name: str, file: str, text: str) -> None:
        """Put a file of the user's own into a run's folder, unless there is one of this name."""
        path = self.folder(name) / file
        if path.exists() or any(parent.is_file() for parent in path.parents):
            return
        self.acts.append(("place", name, file, text))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.own[path] = path.read_bytes()
        if path.parent != self.folder(name):
            self.own[path.parent] = None

    def spoil(self, name: str, file: str, how: str, at: float) -> None:
        """Corrupt one file of a run; what it alone had is not promised any more."""
        path, run = self.folder(name) / file, self.runs.setdefault(name, Run())
        if not path.is_file() or not path.stat().st_size:
            return
        self.acts.append(("spoil", name, file, how, at))
        content = bytearray(path.read_bytes())
        place = int(at * len(content))
        if how == "flip":
            content[place] ^= 64
        path.write_bytes(content if how == "flip" else content[: place * (how == "cut")])
        run.spoiled[file] = path.read_bytes()
        run.has_lost_rows |= file == "metrics.csv"
        saves = [p for p in self.files(name) if p.suffix == ".pt" and not p.name.startswith(".")]
        intact = (read(p) for p in saves if p.name not in run.spoiled)
        run.position = max((s.position for s in intact if s and s.position[0] >= 0), default=None)

    def copy(self, source: str, name: str) -> None:
        """Copy a run's folder, as cp -r does; both may be continued."""
        old, new = self.folder(source), self.folder(name)
        if new.exists() or not source or not old.is_dir():
            return
        self.acts.append(("copy", source, name))
        shutil.copytree(old, new)
        for path, content in self.own.copy().items():
            if path.is_relative_to(old):
                self.own[new / path.relative_to(old)] = content
        run = self.runs.get(source, Run())
        self.runs[name] = Run(
            run.position, {**run.models}, {**run.spoiled}, run.has_lost_rows, run.has_lost_best
        )

    def _settle(self, run: Run, start: Start, noted: list[Saved]) -> None:
        """Learn what is promised after a start."""
        is_lost = "--overwrite" in start.flags and (start.status != 2 or start.fault is not None)
        if is_lost and not noted:  # the user agreed to go back; otherwise `note` has followed
            source = names_file(start.flags)
            saved = read(self.root / source) if source and run.position else None
            if saved and run.position:
                run.position = min(run.position, saved.position)
        is_new = noted and not re.search("^resuming", start.out, re.MULTILINE)
        if is_new and "metrics.csv" not in run.spoiled:
            run.has_lost_rows = False
        last = self.folder(start.name) / "last.pt"
        if is_new and start.status == 2 and noted[-1].position == (0, 0) and not last.exists():
            run.position = None  # withdrawn: nothing was trained

    def _others(self, name: str) -> dict[Path, bytes]:
        """Return the files that a start of the run `name` has nothing to do with."""
        place, others = self.folder(name), {}
        for path in self.root.rglob("*"):
            inside = path.relative_to(place).parts if path.is_relative_to(place) else ("", "")
            is_own = len(inside) < 2 or inside[:1] == (".replaced",)
            is_own |= inside[:1] == ("evaluation",) and "evaluation" not in self.runs
            if (
                path.is_file()
                and not is_own
                and path.relative_to(self.root).parts[0] not in NOT_OF_RUNS
            ):
                others[path] = path.read_bytes()
        return others

    # -- checks -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Say by which starts a promise was broken."""
        try:
            yield
        except BrokenError as error:
            self.is_broken = True
            steps = "\n".join(f"  {n}. {start}" for n, start in enumerate(self.starts, 1))
            own = "".join(f"\n  user's: {path.relative_to(self.root)}" for path in self.own)
            raise BrokenError(f"{error}\n{steps}{own}") from None

    def _check_status(self, start: Start) -> None:
        if start.killed:
            return
        lines = [line for line in start.err.splitlines() if line.strip()]
        errors = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", start.err, re.MULTILINE)
        expect("Traceback" not in start.err, f"exit {start.status} with a traceback: {errors[-1:]}")
        kind = start.fault.kind if start.fault else ""
        allowed = {0, 1, 2} if kind in REFUSED else {0, 2}
        if kind in signal.Signals.__members__:
            allowed.add(128 + signal.Signals[kind])
        expect(start.status in allowed, f"exit {start.status}")
        if start.status in (1, 2):
            is_one = len(lines) == 1 and lines[0].startswith("error: ")
            expect(is_one, f"exit {start.status} with {len(lines)} lines")

    def _check_begin(
        self, start: Start, promised: tuple[int, int] | None, noted: list[Saved]
    ) -> None:
        """Check that a start has continued where the run was, and that what was rescued is there."""
        if promised and "--overwrite" not in start.flags and not names_file(start.flags):
            found = re.search(
                r"^resuming .*: (\d+) epochs? and (\d+) steps?", start.out, re.MULTILINE
            )
            expect(bool(found or not noted), f"a new run over one at {promised}")
            began = (int(found[1]), int(found[2])) if found else promised
            expect(began >= promised, f"resumed at {began}, after a save at {promised}")
        if rescued := re.search(r"its files are in (\S+) \((.+)\)", start.err):
            for name in rescued[2].split(", "):
                expect(
                    read(self.root / rescued[1] / name) is not None, f"no {name} in {rescued[1]}"
                )
            newest = rescued[1] if "last.pt" in rescued[2].split(", ") else self.folder(start.name)
            saved = read(self.root / newest / "last.pt")
            expect(saved is not None, f"{newest} has no last.pt")
            best = read(self.root / rescued[1] / "best.pt") or read(
                self.folder(start.name) / "best.pt"
            )
            expect(bool(best or saved.best[0] < 0), "no best.pt, neither here nor rescued")

    def _check_user_files(self, before: dict[Path, bytes]) -> None:
        own = self.own
        self.own = {p: p.read_bytes() if p.is_file() else None for p in own if p.exists()}
        for path, content in {**before, **own}.items():
            owner = "the user" if path in own else "another run"
            what = f"{path.name!r} (in {path.parent.relative_to(self.root)}/)"
            is_there = path.is_dir() if content is None else path.is_file()
            expect(is_there, f"{what} of {owner} is gone")
            is_same = content is None or path.read_bytes() == content
            expect(is_same, f"{what} of {owner} has changed")

    # -- the advice of a message ------------------------------------------------------------------

    def _follow(self, start: Start) -> None:
        """Do literally, on a copy, each thing that the message of a refused start names."""
        key = re.sub(r"\S*/\S*|\d+", "", start.err) + str("--resume" in start.flags)
        if start.status != 2 or start.killed or key in self.followed:
            return
        self.followed.add(key)
        choices = list(find_advice(start))
        expect(bool(choices), f"the message names no command: {start.err.strip()}")
        for choice in choices:
            done = self._try(self.root, start, choice)
            expect(done.status == 0, f"the advice {choice[0]!r} does not work: {done}")

    def _try(self, source: Path, start: Start, choice: Advice, *, more: int = 1) -> Start:
        """Return how a start ends that follows an advice, and `more` that this start gives."""
        what, name, flags, removed = choice
        with tempfile.TemporaryDirectory() as place:
            root = Path(place, "copy")
            shutil.copytree(source, root)
            for path in (root / each for each in removed.split(", ") if removed):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            plan = Start(name, tuple(flags), launcher=start.launcher)
            done, _ = run_program(root, self.command(name, flags), plan, lambda path: None, 500)
            others = (
                [c for c in find_advice(done) if c[0] != what] if done.status == 2 and more else []
            )
            tried = [self._try(root, done, other, more=more - 1) for other in others]
        return next((last for last in tried if last.status == 0), done)
