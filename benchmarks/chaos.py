"""Kill a run again and again, and compare its end with that of an undisturbed one.

    python -m benchmarks.chaos --kills 25 --ranks 2

Real torchrun, CPU, the classic U-Net of width 4 on small images. A random rank or the launcher is
killed (SIGKILL), or the launcher is asked to stop (SIGTERM), at random moments, during and between
saves, which are slowed down for it; then the run is started again with --resume. At the end its
weights and metrics.csv are compared with those of the undisturbed run, bit by bit.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.images import make_images
from benchmarks.timing import new_parser, print_table
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.errors import UserError
from unet_ddp.files import is_alive

VICTIM = Path(__file__).parent / "victim.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
IMAGES, SAVE_EVERY, STEPS_PER_KILL = 40, 4, 10
STEPS_PER_EPOCH = (IMAGES - round(IMAGES / 10)) // 4
MOST_LOST = 2 * SAVE_EVERY  # the steps since a save, and those taken while it was written
LONGEST = 120  # seconds for a start to show its first step
KINDS = ("a rank killed", "the launcher killed", "SIGTERM")


@dataclass
class Toll:
    """The cost of the kills so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    lost: dict[str, list[int]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """Steps done but not saved, for each kill of a kind."""
    back: list[float] = field(default_factory=list)
    """Seconds from a kill to the next new step."""
    unreadable: int = 0
    """Kills after which last.pt could not be read."""
    in_save: int = 0
    """Kills that left a temporary file."""


class Step(NamedTuple):
    """A line of benchmarks/victim.py: a rank has done a step of the run."""

    process: int
    rank: int
    step: int
    time: float


class Victim:
    """A run in `folder` that is started again and again."""

    def __init__(self, folder: Path, flags: list[str], ranks: int) -> None:
        self.steps, self.log, self.run = (folder / name for name in ("steps.txt", "log.txt", "run"))
        self.last = self.run / "last.pt"
        self.ranks = ranks
        self.flags = [*flags, "--checkpoints", str(self.run)]
        folder.mkdir()
        self.steps.touch()

    def start(self, pause: float) -> subprocess.Popen[bytes]:
        """Start torchrun, which resumes the run if there is one."""
        argv = [*self.flags, "--resume"] if self.last.exists() else self.flags
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*TORCHRUN, str(self.ranks), str(VICTIM), *argv],
                env={**os.environ, "CHAOS_STEPS": str(self.steps), "CHAOS_PAUSE": str(pause)},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def read_steps(self, after: int = 0) -> list[Step]:
        """Return the steps done since line `after`."""
        rows = [line.split() for line in self.steps.read_text().splitlines()[after:]]
        return [Step(int(r[0]), int(r[1]), int(r[2]), float(r[3])) for r in rows if len(r) == 4]

    def saved_steps(self) -> int:
        """Return the steps that last.pt contains; UserError if it can't be read."""
        if not self.last.exists():
            return 0
        position = checkpoint.load(self.last)["position"]
        return int(position["epoch"] * STEPS_PER_EPOCH + position["step"])

    def metrics(self) -> list[list[str]]:
        """Return the rows of metrics.csv without times."""
        with (self.run / "metrics.csv").open(newline="") as file:
            return [
                [row[c] for c in row if c not in ("seconds", "images_per_second", "data_wait")]
                for row in csv.DictReader(file)
            ]

    def fail(self, reason: str) -> SystemExit:
        """Return the exit for a run that did what it must not, with the end of its log."""
        return SystemExit(f"{self.log.read_text()[-6000:]}\n{reason}")


def disturb(victim: Victim, kills: int, seed: int) -> Toll:
    """Start, kill, look at what is left, and start again, until the run has ended."""
    dice, toll, killed = random.Random(seed), Toll(), 0.0
    while True:
        before = len(victim.steps.read_text().splitlines())
        launcher = victim.start(0.02)
        steps = wait_for_step(victim, launcher, before)
        if killed:
            toll.back.append((steps[0].time if steps else time.time()) - killed)
        if toll.kinds.total() < kills:
            time.sleep(dice.uniform(0, 0.5))
        else:
            launcher.wait()
        if launcher.poll() is not None:  # it has ended, perhaps before it could be killed
            if launcher.returncode:
                raise victim.fail("the run failed")
            return toll
        killed = time.time()
        strike(victim, launcher, dice, toll, before)


def wait_for_step(victim: Victim, launcher: subprocess.Popen[bytes], before: int) -> list[Step]:
    """Return the first steps of this start; none if it ended without one."""
    until = time.time() + LONGEST
    while not (steps := victim.read_steps(before)) and launcher.poll() is None:
        if time.time() > until:
            raise victim.fail(f"no step in {LONGEST} s")
        time.sleep(0.02)
    return steps


def strike(
    victim: Victim, launcher: subprocess.Popen[bytes], dice: random.Random, toll: Toll, before: int
) -> None:
    """Kill once, and note what that cost."""
    kind = dice.choice(KINDS)
    processes = [step.process for step in {s.rank: s for s in victim.read_steps(before)}.values()]
    if kind == "a rank killed":
        os.kill(dice.choice(processes), signal.SIGKILL)
    else:
        launcher.send_signal(signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
    launcher.wait()
    until = time.time() + 30
    while any(map(is_alive, processes)):
        if time.time() > until:
            raise victim.fail(f"processes {processes} live on after: {kind}")
        time.sleep(0.01)
    toll.kinds[kind] += 1
    toll.in_save += any(victim.run.glob("*.tmp"))
    done = max(step.step for step in victim.read_steps(before))
    try:
        toll.lost[kind].append(done - victim.saved_steps())
    except UserError as error:
        print(error)
        toll.unreadable += 1


def same_weights(one: Path, other: Path) -> bool:
    """Return whether two checkpoints contain the same bits: weights, average, optimizer."""
    a, b = checkpoint.load(one), checkpoint.load(other)
    moments = [
        torch.equal(value, b["optimizer"]["state"][index][name])
        for index, state in a["optimizer"]["state"].items()
        for name, value in state.items()
    ]
    weights = [torch.equal(a[part][k], b[part][k]) for part in ("model", "ema") for k in a[part]]
    return all(moments) and all(weights) and a["best"] == b["best"]


def main(argv: list[str] | None = None) -> int:
    """Print the table; return 1 if the run did not end as the undisturbed one."""
    parser = new_parser(__doc__)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--augmentation", default="photo")
    options = parser.parse_args(argv)
    epochs = max(2, options.kills * STEPS_PER_KILL // STEPS_PER_EPOCH)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        flags = [
            *make_images(Path(home, "data"), IMAGES, (32, 32)), "--width", "4", "--ema", "0.9",
            "--batch-size", str(4 // options.ranks or 1), "--epochs", str(epochs), "--workers", "0",
            "--save-every-steps", str(SAVE_EVERY), "--augmentation", options.augmentation,
        ]  # fmt: skip
        calm, wild = (Victim(Path(home, name), flags, options.ranks) for name in ("calm", "wild"))
        if calm.start(0).wait() != 0:
            raise calm.fail("the undisturbed run failed")
        began = time.time()
        toll = disturb(wild, options.kills, options.seed)
        minutes = (time.time() - began) / 60
        same = same_weights(calm.last, wild.last)
        same_metrics = calm.metrics() == wild.metrics()
    rows = describe(toll, options, epochs * STEPS_PER_EPOCH)
    rows += [("metrics.csv as undisturbed", "yes" if same_metrics else "NO")]
    rows += [("final state bit-identical", "yes" if same else "NO"), ("minutes", f"{minutes:.1f}")]
    print_table(("", ""), rows)
    lost = max((n for kind in toll.lost.values() for n in kind), default=0)
    return 0 if same and same_metrics and not toll.unreadable and lost <= MOST_LOST else 1


def describe(toll: Toll, options: argparse.Namespace, steps: int) -> list[tuple[str, str]]:
    """Return the rows about the kills."""
    kinds = ", ".join(f"{kind}: {count}" for kind, count in sorted(toll.kinds.items()))
    killed = toll.lost["a rank killed"]  # takes the others with it; all others save before the end
    others = toll.lost["the launcher killed"] + toll.lost["SIGTERM"]
    back = sorted(toll.back) or [float("nan")]
    return [
        ("ranks, steps of the run, save every", f"{options.ranks}, {steps}, {SAVE_EVERY} steps"),
        ("kills", f"{toll.kinds.total()} ({kinds})"),
        ("kills that hit a save", str(toll.in_save)),
        ("restarts", str(len(toll.back))),
        ("steps lost, a rank killed", f"most {max(killed, default=0)}, in all {sum(killed)}"),
        ("steps lost, otherwise", f"most {max(others, default=0)}, in all {sum(others)}"),
        ("seconds to come back", f"median {statistics.median(back):.1f}, most {back[-1]:.1f}"),
        ("last.pt unreadable after a kill", str(toll.unreadable)),
    ]


if __name__ == "__main__":
    sys.exit(main())
