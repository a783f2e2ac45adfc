"""All states of the disk in which a kill or a power cut can leave a run, and the start from each."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.search.checks import Run
from tests.search.disk import Fault, Operation
from tests.search.program import BrokenError, Saved, Start, expect, read, run_program
from tests.search.promise import World

COMMON = ("--save-every=1", "--stop-after=2epochs", "--epochs=3")
PHASES: dict[str, list[tuple[str, ...]]] = {
    "new": [COMMON],
    "resume": [("--save-every=1", "--stop-after=1epochs", "--epochs=3"), (*COMMON, "--resume")],
    "overwrite": [("--save-every=1", "--epochs=1", "--lr=0.1"), (*COMMON, "--overwrite")],
    "go back": [
        COMMON,
        (*COMMON, "--resume", "checkpoints/a/epoch_0001.pt", "--overwrite", "--lr=0.1"),
    ],
}
"""Starts by name; the last one of each is taken apart."""
Tree = dict[str, bytes]


@dataclass(frozen=True)
class State:
    """What a disk may contain after a crash."""

    phase: str
    after: int
    how: str
    tree: Tree
    run: Run

    def __str__(self) -> str:
        return f"{self.phase}, {self.how} after operation {self.after}"


@dataclass
class _Simulated:
    """A disk with what it has been told, and what it has kept for sure."""

    data: list[bytes] = field(default_factory=list)
    synced: list[bytes] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)

    def create(self, path: str, content: bytes = b"") -> None:
        self.names[path] = len(self.data)
        self.data.append(content)
        self.synced.append(content)

    def do(self, operation: Operation) -> None:
        name, path, other = operation.name, operation.path, operation.other
        if name == "open":
            if path not in self.names:
                self.create(path)
            elif not operation.data:
                self.data[self.names[path]] = b""
        elif name == "fsync" and path not in self.names:  # a folder
            here = {p: n for p, n in self.names.items() if str(Path(p).parent) == path}
            others = {p: n for p, n in self.durable.items() if str(Path(p).parent) != path}
            self.durable = others | here
        elif name == "rename":
            self.names[other] = self.names.pop(path)
        elif name == "link":
            self.names[other] = self.names[path]
        elif name == "unlink":
            self.names.pop(path, None)
        elif path in self.names:
            node = self.names[path]
            old, new, start = self.data[node], operation.data, operation.offset
            if name == "fsync":
                self.synced[node] = old
            elif name == "write":
                self.data[node] = old[:start].ljust(start, b"\0") + new + old[start + len(new) :]
            elif name == "truncate":
                self.data[node] = old[:start]

    def states(self) -> Iterator[tuple[str, Tree]]:
        """Yield what may be left: all of it after a kill, less after a power cut."""
        half = [
            kept if data is kept else data[: (len(kept) + len(data)) // 2]
            for data, kept in zip(self.data, self.synced, strict=True)
        ]
        for what, data in (("kill", self.data), ("torn", half), ("power cut", self.synced)):
            yield what, {path: data[node] for path, node in self.names.items()}
        yield "names lost", {path: self.synced[node] for path, node in self.durable.items()}


def record(phase: str, root: Path, data: Path) -> list[State]:
    """Return the states in which a crash can leave the last start of a phase, each once."""
    world = World(root / phase / "w", data)
    *first, flags = PHASES[phase]
    for earlier in first:
        world.start("a", earlier, launcher="job")
    disk, run = _Simulated(), world.runs.get("a", Run())
    for path in world.root.rglob("*"):
        if path.is_file():
            disk.create(str(path), path.read_bytes())
    disk.durable = disk.names.copy()
    old, saves = run.position, list[Saved]()

    def note(path: Path) -> None:
        if path == world.folder("a") / "last.pt" and (
            saved := read(path)
        ):  # none that is set aside
            saves.append(saved)

    plan = Start("a", flags, launcher="job")
    ended, noted = run_program(world.root, world.command("a", flags), plan, note, 99)
    expect(ended.status == 0, str(ended))
    found: dict[frozenset[tuple[str, int]], State] = {}
    done = sure = run
    for k, operation in enumerate(noted.log):
        disk.do(operation)
        if operation.name == "rename" and operation.other.endswith("/a/last.pt"):
            done = Run(done.position, dict(done.models))
            done.follow(saves.pop(0))
        elif operation.name == "fsync" and operation.path.endswith("/a"):
            sure = done
        elif phase == "go back" and done is run and operation.name in ("unlink", "rename"):
            run = done = sure = Run(min(old or (0, 0), (1, 0)), dict(run.models))
        after = noted.log[k + 1] if k + 1 < len(noted.log) else Operation("", "")
        if (after.name, after.path) == (operation.name, operation.path):
            continue
        for how, tree in disk.states():
            tree = {
                str(Path(path).relative_to(world.root)): content for path, content in tree.items()
            }
            parts = ((re.sub(r"\d+\.\w+\.tmp", "", p), hash(c)) for p, c in tree.items())
            key = frozenset(each for each in parts if "tfevents" not in each[0])
            known = done if how == "kill" else sure
            label = f"{how} ({operation.name} {Path(operation.path).name})"
            found.setdefault(key, State(phase, k, label, tree, known))
    return list(found.values())


def starts_after(phase: str) -> dict[str, tuple[tuple[str, ...], str | None]]:
    """Return the next starts by name: their flags and their launcher."""
    flags = PHASES[phase][-1]
    new = tuple(f for f in flags if f not in ("--resume", "--overwrite") and ".pt" not in f)
    return {
        "the same command": (flags, None),
        "--resume": ((*new, "--resume"), None),
        "the launcher": (flags, "job"),
    }


def check(state: State, data: Path, start: str, faults: Sequence[Fault]) -> str:
    """Start from a state, with failures first; return what was broken, or nothing."""
    flags, launcher = starts_after(state.phase)[start]
    with tempfile.TemporaryDirectory(prefix="search-") as place:
        world = World(Path(place, "w"), data)
        for path, content in state.tree.items():
            (world.root / path).parent.mkdir(parents=True, exist_ok=True)
            (world.root / path).write_bytes(content)
        world.folder("a").mkdir(parents=True, exist_ok=True)
        world.runs["a"] = Run(state.run.position, dict(state.run.models))
        try:
            for fault in faults:
                world.start("a", flags, fault, launcher=launcher)
            ended = world.start("a", flags, launcher=launcher)
            with world.explained():
                needs = start == "the launcher" or (start == "--resume" and state.run.position)
                expect(ended.status == 0 or not needs, f"{start} is refused")
        except BrokenError as error:
            return f"{error}\n  0. {state}"
    return ""


def check_some(
    data: Path,
    chance: random.Random,
    phases: Sequence[str] = tuple(PHASES),
    most: int = 10**9,
) -> Iterator[tuple[State, str, str]]:
    """Yield states in random order, how each is started from, and what was broken."""
    with tempfile.TemporaryDirectory(prefix="search-") as place:
        states = [state for phase in phases for state in record(phase, Path(place), data)]
        shutil.rmtree(place, ignore_errors=True)
        Path(place).mkdir()
        cases = [(state, start) for state in states for start in starts_after(state.phase)]
        chance.shuffle(cases)
        for number, (state, start) in enumerate(cases[:most]):
            kinds = ["kill", "kill", "ENOSPC", "EDQUOT"]
            fault = Fault(chance.choice(kinds), chance.randrange(50), chance.random() < 0.5)
            faults = [fault] * (number % 2)
            how = f"{start}, {faults}" if faults else start
            yield state, how, check(state, data, start, faults)
