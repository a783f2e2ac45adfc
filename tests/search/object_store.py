"""A search for faults of runs at an address: two machines, a bucket, and all that may happen to them.

Each start of a run is a thread, and so is each of its uploads and saves; one of all of them runs at a
time, until its next request to storage or the next file that it writes. What happens then is drawn
from a seed: who goes on, an answer that is lost, a request that is refused, done twice or late, a kill,
a start on the other machine, a corrupt file, an empty cache. After each request the bucket is compared
with what the runs have done.
"""

from __future__ import annotations

import csv
import io
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunningError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
import torch
from obstore.exceptions import PermissionDeniedError

from tests.object_store import MemoryBucket
from tests.runs.test_folder import ABOUT, SAVED, config_of
from tests.tiny import make_data, make_state
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.checkpoints.run_files import HEADS
from unet_ddp.distributed.stop_signal import StopReason
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.cloud import Url, mirror, read
from unet_ddp.extras.cloud.pointer import find_newest
from unet_ddp.files import write_text
from unet_ddp.runs import folder
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.lock import HELD
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.writers import CsvWriter

ADDRESS = Url("s3://bucket/runs")
EPOCHS = 6  # after which a run is over
NEIGHBOURS = {
    "notes.txt", "sub/best.pt", "last/notes.txt", "last/last.json", "last/best.pt", "last/sub/x.pt",
    "last/last/000001-0a0b0c0d.pt", "best.pt/last.json", "lasting.pt", "events.out.tfevents.1.lab",
}  # fmt: skip
"""Objects of the user below the address; those below last/ are of the run ``--exp-name last``."""
IN_THE_WAY = ("config.yaml", "report.html", "best.pt", "epoch_0002.pt", "metrics.csv")
FAULTS = ("refused", "lost", "doubled", "late")
_REQUESTS = ("put", "get", "get_range", "head", "list", "list_with_delimiter", "delete", "copy")


class KillError(BaseException):
    """Ends the threads of a machine that was killed, once nothing that they do counts."""


@dataclass(eq=False)
class Task:
    """A thread that runs when it is resumed, until it pauses."""

    machine: Machine
    work: Callable[[], object]
    waits_for: Callable[[], bool] = lambda: True
    request: str = ""  # that it is about to make
    fault: str = ""
    is_idle: bool = False  # a start that waits for an order
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class Tasks:
    """All threads, of which one runs."""

    def __init__(self) -> None:
        self.current: Task | None = None
        self.all: list[Task] = []
        self.is_over = False
        self._back = threading.Semaphore(0)

    def start(self, machine: Machine, work: Callable[[], object]) -> Task:
        task = Task(machine, work)
        self.all.append(task)
        machine.tasks.append(task)
        threading.Thread(target=self._run, args=(task,), daemon=True).start()
        return task

    def _run(self, task: Task) -> None:
        task.go.acquire()
        try:
            if not self.is_over:
                task.work()
        except KillError:
            pass
        finally:
            self.all.remove(task)
            if task in task.machine.tasks:
                task.machine.tasks.remove(task)
            self._back.release()

    def resume(self, task: Task, fault: str = "") -> None:
        """Run a thread until it pauses or ends."""
        os.environ["XDG_CACHE_HOME"] = str(task.machine.cache)
        self.current, task.fault = task, fault
        task.go.release()
        self._back.acquire()
        self.current = None

    def pause(self, request: str = "", waits_for: Callable[[], bool] = lambda: True) -> str:
        """Let others run; return the fault of the request."""
        task = self.current
        assert task is not None
        if self.is_over:
            raise KillError
        task.request, task.waits_for = request, waits_for
        self._back.release()
        task.go.acquire()
        if self.is_over:
            raise KillError
        task.request = ""
        return task.fault

    def end(self) -> None:
        """End all threads, killed ones too."""
        self.is_over = True
        while self.all:
            self.resume(self.all[-1])


class Pending(Future[Any]):
    """The result of a thread."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__()
        self.tasks = tasks

    def result(self, timeout: float | None = None) -> Any:
        if self.tasks.is_over:  # of a killed start, which only closes its files
            return ""
        if timeout is not None and not self.done():
            self.tasks.pause("wait for a moment")
            if not self.done():
                raise StillRunningError
        if not self.done():
            self.tasks.pause("wait", self.done)
        return super().result(0)


class Executor:
    """Has the place of a ThreadPoolExecutor with one thread."""

    def __init__(self, tasks: Tasks, *_: Any, **__: Any) -> None:
        self.tasks, self.futures = tasks, list[Future[Any]]()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        assert self.tasks.current is not None
        before, future = list(self.futures), Pending(self.tasks)

        def work() -> None:
            if not all(each.done() for each in before):
                self.tasks.pause("wait", lambda: all(each.done() for each in before))
            future.set_running_or_notify_cancel()
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        self.tasks.start(self.tasks.current.machine, work)
        self.futures.append(future)
        return future

    def shutdown(self) -> None:
        if not self.tasks.is_over and not all(each.done() for each in self.futures):
            self.tasks.pause("wait", lambda: all(each.done() for each in self.futures))


class Lock:
    """Has the place of a threading.Lock."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks, self.is_held = tasks, False

    def __enter__(self) -> None:
        while self.is_held:
            self.tasks.pause("wait", lambda: not self.is_held)
        self.is_held = True

    def __exit__(self, *error: object) -> None:
        self.is_held = False


@dataclass(eq=False)
class Machine:
    """A machine, its cache folder and what runs on it."""

    name: str
    cache: Path
    tasks: list[Task] = field(default_factory=list)
    order: tuple[str, float] = ("", 0.0)  # for an idle start
    lines: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)  # digests of files that an error named


@dataclass
class Epoch:
    """A state that a start has reached; its network's weights are its number."""

    number: int
    before: int | None  # the state that it was trained from
    epoch: int


@dataclass
class Saved:
    """What a checkpoint says."""

    number: int
    epoch: int
    best: dict[str, Any]


class Scenario:
    """A bucket, two machines, and what they have done."""

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random.Random(seed)
        self.root, self.tasks, self.bucket = root, Tasks(), MemoryBucket()
        self.machines = [Machine(name, root / name) for name in ("one", "two")]
        self.epochs: dict[int, Epoch] = {}  # all states by number
        self.late: list[Callable[[], object]] = []  # puts that have not arrived
        self.trace: list[str] = []
        self.found: list[str] = []
        self.count = 0  # states of the bucket that were looked at
        self.has_changed = True
        self.asleep: Machine | None = None  # that is slow
        self.loaded: dict[bytes, Saved] = {}  # by digest of the object
        self.stored = 0  # epochs of the last.pt in storage
        self.root: int | None = None  # the first state of the run in storage
        self.begun = 0  # its epochs when it was put first
        self.pending: list[int] = []  # the first states of runs that may replace it
        self.neighbours = set(NEIGHBOURS)
        if self.random.random() < 0.1:
            self.neighbours.add(self.random.choice(IN_THE_WAY))
        for name in self.neighbours:
            obstore.put(self.bucket.store, f"runs/{name}", name.encode())

    # -- what a start does ------------------------------------------------------------------

    def run(self, machine: Machine, **launch: Any) -> None:
        """Train as `unet_ddp.commands.train` does, an epoch for each order."""
        config = config_of(ADDRESS, **launch)
        say = machine.lines.append
        error = ""
        try:
            with RunFolder(config, World(), say) as run:
                stored, roots = self.stored, {self.root, *self.pending}
                resumed = run.open(config)
                self.check_resumed(machine, resumed, stored, roots)
                run.claim(config, resumed, {n: SAVED[n] for n in ABOUT})
                self.train(machine, run, resumed)
        except (UserError, RunError) as failure:
            error = str(failure)
        if error or "its files are in" in "".join(machine.lines):
            self.remember(machine, error or machine.lines[-1])

    def train(self, machine: Machine, run: Any, resumed: StartPoint) -> None:
        state, number = make_state(), None
        if resumed.content:
            state.load_state_dict(resumed.content)
            number = self.number_of(resumed.content)
        else:
            self.pending.append(self.new_state(state, None))
        rows = CsvWriter(run.path / "metrics.csv", after=state.done)
        run.begin(make_data(), state, resumed)
        number = self.number_of({"model": state.network.state_dict()})
        while state.epoch < EPOCHS:
            task = self.tasks.current
            assert task is not None
            task.is_idle = True
            self.tasks.pause("order")
            task.is_idle = False
            order, score = machine.order
            if order == "stop":
                break
            state.step = state.steps_per_epoch
            number = self.new_state(state, number, state.epoch + 1)
            rows.epoch({"epoch": state.epoch + 1, "step": state.done, "number": number})
            state.step = 0
            is_best = state.finish_epoch(
                SimpleNamespace(  # type: ignore[arg-type]
                    scores=SimpleNamespace(dice=score),
                    threshold=None,
                    score=score,
                    score_name="Dice",
                )
            )
            run.save(state, is_best=is_best)
            self.trace.append(f"{machine.name}: epoch {state.epoch}, {score}, state {number}")
        run.wait()
        run.finish(state, StopReason(is_limit=True) if state.epoch < EPOCHS else None)
        if state.epoch == EPOCHS:
            write_text(
                run.path / "report.html", f"{HEADS['report.html'].decode()}of state {number}"
            )

    def new_state(self, state: Any, before: int | None, epoch: int = 0) -> int:
        number = len(self.epochs) + 1
        self.epochs[number] = Epoch(number, before, epoch)
        with torch.no_grad():
            next(state.network.parameters()).fill_(number)
        return number

    def number_of(self, content: dict[str, Any]) -> int:
        return int(content["model"]["0.weight"].flatten()[0])

    def line_of(self, number: int | None) -> list[int]:
        """The states that led to one, itself too."""
        line = []
        while number is not None:
            line.append(number)
            number = self.epochs[number].before
        return line

    # -- what must hold ---------------------------------------------------------------------

    def fail(self, kind: str, text: str) -> None:
        if not any(line.startswith(kind) for line in self.found):
            self.found.append(f"{kind}: {text}")
            self.trace.append(f"FOUND: {self.found[-1]}")

    def object(self, name: str) -> bytes | None:
        try:
            return bytes(self.get(self.bucket.store, f"runs/{name}").bytes())
        except FileNotFoundError:
            return None

    def check(self) -> None:
        """Compare the bucket with what the runs have done."""
        if not self.has_changed:
            return
        self.has_changed = False
        self.count += 1
        for name in self.neighbours:
            if self.object(name) != name.encode():
                self.fail(f"a foreign object changed, {name}", "")
        if self.object("last.json") is None:
            return
        try:
            last = self.load("last.pt")
        except UserError as error:
            if "checkpoint" not in str(error) and "not found" not in str(error):
                self.fail("last.pt can't be read", str(error))
            elif self.root is not None:
                self.fail("last.pt is gone", str(error))
            return
        self.check_set(last)

    def load(self, name: str) -> Saved:
        """What a checkpoint in storage says, as `predict --model` reads it."""
        path = find_newest(ADDRESS / name)
        digest = sha256(read(path)).digest()
        if digest not in self.loaded:
            content = checkpoint.load(path)
            epoch = content.get("position", {}).get("epoch", 0)
            self.loaded[digest] = Saved(self.number_of(content), epoch, content["best"])
        return self.loaded[digest]

    def check_set(self, last: Saved) -> None:
        """The best network and the rows are there of which last.pt speaks."""
        number, epoch, best = last.number, last.epoch, last.best
        line = self.line_of(number)
        if line[-1] in self.pending:  # none of an earlier one may come
            self.root, self.begun = line[-1], epoch
            self.pending = self.pending[self.pending.index(self.root) + 1 :]
        elif line[-1] != self.root:
            self.fail("a run that was replaced is back", f"{line[-1]} in place of {self.root}")
        elif epoch < self.stored:
            self.fail("storage went back", f"from epoch {self.stored} to {epoch}")
        self.stored = epoch
        future = {n for n in self.epochs if number in self.line_of(n)}  # of which all may be there
        if best["score"] > float("-inf"):
            try:
                found = self.load("best.pt")
            except UserError as error:
                return self.fail("best.pt is not there", str(error))
            of = found.number
            if found.best["score"] < best["score"]:
                self.fail("best.pt is older than last.pt", f"{found.best}, {best} of {line}")
            elif of not in line and of not in future:
                self.fail("best.pt is of a start that lost", f"state {of} beside {line}")
        if self.begun:  # the first save is put before the rows: those of the run before are there
            return None
        rows = [*csv.DictReader(io.StringIO((self.object("metrics.csv") or b"").decode()))]
        if "metrics.csv" in self.neighbours or self.epochs[line[-1]].epoch:
            return None
        numbers = [row.get("number") for row in rows if int(row["epoch"]) <= epoch]
        if numbers != [str(n) for n in reversed(line[:-1])]:
            self.fail("metrics.csv lacks rows", f"{numbers}, last.pt is of {line[::-1]}")
        return None

    def check_resumed(
        self, machine: Machine, resumed: StartPoint, stored: int, roots: set[int | None]
    ) -> None:
        """A start goes on from what storage has, or from what is newer."""
        self.trace.append(f"{machine.name}: starts from {resumed.source if resumed.content else 0}")
        if resumed.content is None:
            return
        if sha256(resumed.source.read_bytes()).hexdigest() in machine.named:
            machine.named.clear()  # the run goes on from these files
        epoch = resumed.content["position"]["epoch"]
        stored = min(stored, self.stored)  # another start may have overwritten the run meanwhile
        root = self.line_of(self.number_of(resumed.content))[-1]
        if root not in {*roots, self.root, *self.pending}:  # by then, or before
            self.fail("a run that was replaced is resumed", f"{root}, storage has {self.root}")
        if root == self.root and epoch < stored and resumed.source.name.startswith("last"):
            self.fail("an older state is resumed", f"epoch {epoch}, storage has {stored}")

    def remember(self, machine: Machine, line: str) -> None:
        self.trace.append(f"{machine.name}: ends: {line}")
        if "its files are in" in line:
            for path in machine.cache.glob("unet_ddp/runs/runs-*/*.pt"):
                machine.named[sha256(path.read_bytes()).hexdigest()] = path.name

    def check_named(self, machine: Machine) -> None:
        """The files that an error named exist."""
        there = {
            sha256(path.read_bytes()).hexdigest()
            for path in machine.cache.rglob("*.pt")
            if path.is_file()
        }
        for digest, name in machine.named.items():
            if digest not in there:
                self.fail("a file that an error named is gone", f"{machine.name}: {name}")

    # -- what happens -----------------------------------------------------------------------

    def request(self, name: str, function: Any, *args: Any, **how: Any) -> Any:
        """Make a request of a thread, when and as the scenario wants."""
        if self.tasks.current is None:
            return function(*args, **how)
        if name == "put":
            content = args[2]
            content = content if isinstance(content, bytes) else _read(content)
            args = (*args[:2], content)
        path = args[1] if len(args) > 1 else ""
        fault = self.tasks.pause(f"{name} {path}")
        self.has_changed |= name in ("put", "delete", "copy")
        if fault == "late" and name != "put":
            fault = "refused"
        if fault == "late":
            self.late.append(partial(function, *args, **how))
        if fault in ("refused", "late"):
            raise PermissionDeniedError(fault)
        answer = function(*args, **how)
        if fault == "doubled" and name == "put":
            return function(*args, **how)
        if fault == "lost":
            raise PermissionDeniedError("lost")
        return answer

    def step(self) -> None:
        """Let one thing happen."""
        if self.random.random() < 0.1:
            self.asleep = self.random.choice([*self.machines, None])
        machine = self.random.choice([m for m in self.machines if m is not self.asleep])
        ready = [task for task in machine.tasks if not task.is_idle and task.waits_for()]
        chance = self.random.random()
        if self.late and chance < 0.1:
            self.land()
        elif not machine.tasks and chance < 0.7:
            self.begin(machine)
        elif chance < 0.04 and machine.tasks:
            self.kill(machine)
        elif ready and chance < 0.85:
            task = self.random.choice(ready)
            fault = self.random.choice(FAULTS) if self.random.random() < 0.06 else ""
            if task.request and not task.request.startswith(("wait", "write")):
                self.trace.append(f"{task.machine.name}: {task.request} {fault}")
            self.tasks.resume(task, fault)
        else:
            self.order(machine)
        self.check()

    def land(self) -> None:
        late = self.late.pop(self.random.randrange(len(self.late)))
        self.has_changed = True
        self.trace.append(f"a put arrives late: {late.args[1]}")  # type: ignore[attr-defined]
        with suppress(obstore.exceptions.PreconditionError, obstore.exceptions.AlreadyExistsError):
            late()

    def begin(self, machine: Machine) -> None:
        """Start a run on a machine, after what may have happened to its files."""
        machine.lines.clear()
        chance = self.random.random()
        local = [*machine.cache.glob("unet_ddp/runs/runs-*/last.pt")]
        if chance < 0.1 and local:
            content = bytearray(local[0].read_bytes())
            machine.named.pop(sha256(content).hexdigest(), None)
            content[len(content) // 2] ^= 255
            local[0].write_bytes(content)
            self.trace.append(f"{machine.name}: last.pt becomes corrupt")
        elif chance < 0.15:
            rmtree(machine.cache, ignore_errors=True)
            machine.named.clear()
            self.trace.append(f"{machine.name}: an empty cache")
        launch: dict[str, Any] = {} if self.object("last.json") is None else {"resume": "auto"}
        if self.random.random() < (0.04 if self.stored else 0.5):
            launch = {"overwrite": True}
        self.trace.append(f"{machine.name}: start {launch}")
        self.tasks.resume(self.tasks.start(machine, partial(self.run, machine, **launch)))

    def kill(self, machine: Machine) -> None:
        self.trace.append(f"{machine.name}: killed")
        for key, lock in [*HELD.items()]:  # the system's are gone with a process
            if f"/{machine.name}/" in str(lock.name):
                del HELD[key]
        machine.tasks.clear()

    def order(self, machine: Machine) -> None:
        for task in machine.tasks:
            if task.is_idle:
                kind = "stop" if self.random.random() < 0.15 else "epoch"
                machine.order = kind, self.random.choice((0.1, 0.01 * len(self.epochs)))
                self.tasks.resume(task)
                self.check_named(machine)
                return

    def drain(self) -> None:
        """End all: nothing is late or refused any more, and the machines finish what they do."""
        while self.late:
            self.land()
        for machine in self.machines:
            while machine.tasks:
                ready = [t for t in machine.tasks if t.is_idle or t.waits_for()]
                machine.order = "stop", 0.0
                self.tasks.resume(ready[0])
                self.check()
        for machine in self.machines:  # both can resume, and nothing is lost by that
            if self.object("last.json") is not None:
                machine.lines.clear()
                self.trace.append(f"{machine.name}: a last start")
                task = self.tasks.start(machine, partial(self.run, machine, resume="auto"))
                self.tasks.resume(task)
                while machine.tasks:
                    machine.order = "epoch", 0.05
                    ready = [t for t in machine.tasks if t.is_idle or t.waits_for()]
                    self.tasks.resume(ready[0])
                    self.check()
            self.check_named(machine)


def _read(content: Any) -> bytes:
    return content.read_bytes() if isinstance(content, Path) else content.read()  # type: ignore[no-any-return]


@contextmanager
def _patched(scenario: Scenario, seed: int) -> Iterator[None]:
    """Put the threads, requests and random names of this process under the scenario's order."""
    tasks, names = scenario.tasks, random.Random(seed)
    save = checkpoint.save

    def save_when_told(path: Path, *args: Any, **how: Any) -> None:
        if tasks.current is not None:
            tasks.pause(f"write {path.name}")
        save(path, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        scenario.bucket.take_place(patch)
        scenario.get = obstore.get
        for name in _REQUESTS:
            patch.setattr(obstore, name, partial(scenario.request, name, getattr(obstore, name)))
        patch.setattr(folder, "start_thread", partial(Executor, tasks))
        patch.setattr(mirror, "ThreadPoolExecutor", partial(Executor, tasks))
        patch.setattr(mirror, "Lock", partial(Lock, tasks))
        patch.setattr(checkpoint, "save", save_when_told)
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(secrets, "token_hex", lambda size: names.randbytes(size).hex())
        patch.setenv("XDG_CACHE_HOME", str(scenario.root))
        try:
            yield
        finally:
            tasks.end()


def try_scenario(seed: int, steps: int = 150) -> tuple[int, list[str], list[str]]:
    """Return how many states of the bucket were looked at, what is wrong, and all that happened."""
    with TemporaryDirectory() as root:
        scenario = Scenario(seed, Path(root))
        with _patched(scenario, seed):
            for _ in range(steps):
                scenario.step()
            scenario.drain()
    return scenario.count, [f"{line} (seed {seed})" for line in scenario.found], scenario.trace


def search_object_store(deadline: float, seed: int) -> tuple[int, list[str]]:
    """Try scenarios until `deadline` on the monotonic clock; return states tried and findings."""
    count, findings = 0, list[str]()
    while time.monotonic() < deadline:
        states, found, _ = try_scenario(seed)
        count, seed = count + states, seed + 1
        findings += found
    return count, findings
