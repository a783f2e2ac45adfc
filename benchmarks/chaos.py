"""Kill a run again and again, and see whether it ends as if nothing had happened.

    python -m benchmarks.chaos --kills 25 --ranks 2

Real torchrun, CPU, the classic U-Net of width 4 on small images. A random rank or the launcher is
killed (SIGKILL), or the launcher is asked to stop (SIGTERM), at random moments, in and between
saves, which are slowed down for it; then the run is started again with --resume. At the end its
weights are compared with those of an undisturbed run, bit by bit.
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

import numpy as np
import torch
from PIL import Image

from unet_ddp.errors import UserError
from unet_ddp.files import is_alive
from unet_ddp.runs import checkpoint

VICTIM = Path(__file__).parent / "victim.py"
IMAGES, SAVE_EVERY, STEPS_PER_KILL = 40, 4, 10
LOST_AT_MOST = (
    2 * SAVE_EVERY
)  # the steps since a save, and those that were done while it was written
LONGEST = 120  # seconds for a start to show its first step


@dataclass
class Toll:
    """What the kills have cost."""

    kinds: Counter[str] = field(default_factory=Counter)
    lost: list[int] = field(default_factory=list)
    """Steps done but not saved, per SIGKILL."""
    lost_to_term: list[int] = field(default_factory=list)
    """The same, per SIGTERM."""
    back: list[float] = field(default_factory=list)
    """Seconds from a kill to the next new step."""
    unreadable: int = 0
    """Kills after which last.pt could not be read."""
    in_save: int = 0
    """Kills that left half a file behind."""


class Chaos:
    """A run that is disturbed, in `folder`, with the data of `images`."""

    def __init__(
        self, folder: Path, images: Path, *, ranks: int, epochs: int, flags: list[str]
    ) -> None:
        self.folder, self.ranks = folder, ranks
        self.steps = folder / "steps.txt"
        folder.mkdir()
        self.steps.touch()
        self.flags = [
            "--images", str(images / "imgs"), "--masks", str(images / "masks"),
            "--width", "4", "--batch-size", str(4 // ranks or 1), "--epochs", str(epochs),
            "--workers", "0", "--save-every-steps", str(SAVE_EVERY),
            "--checkpoints", str(folder / "run"), *flags,
        ]  # fmt: skip

    @property
    def last(self) -> Path:
        return self.folder / "run" / "last.pt"

    def start(self, pause: float) -> subprocess.Popen[bytes]:
        """torchrun, going on where there is something to go on from."""
        words = [*self.flags, "--resume"] if self.last.exists() else self.flags
        log = (self.folder / "log.txt").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(self.ranks),
                 str(VICTIM), *words],
                env={**os.environ, "CHAOS_STEPS": str(self.steps), "CHAOS_PAUSE": str(pause)},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def told(self, after: int) -> list[tuple[int, int, int, float]]:
        """What the processes told since line `after`: process, rank, step, time."""
        rows = [line.split() for line in self.steps.read_text().splitlines()[after:]]
        return [(int(r[0]), int(r[1]), int(r[2]), float(r[3])) for r in rows if len(r) == 4]

    def position(self) -> int:
        """Steps that last.pt holds; raises UserError where it can't be read."""
        content = checkpoint.load(self.last)
        place = content["position"]
        return int(place["epoch"] * self.steps_per_epoch + place["step"])

    @property
    def steps_per_epoch(self) -> int:
        return (IMAGES - round(IMAGES / 10)) // 4


def disturb(chaos: Chaos, kills: int, seed: int, toll: Toll) -> None:
    """Start, kill, look at what is left, and start again, until the run has ended."""
    dice = random.Random(seed)
    while True:
        before = len(chaos.steps.read_text().splitlines())
        began = time.time()
        launcher = chaos.start(0.02)
        while not (new := chaos.told(before)) and launcher.poll() is None:
            if time.time() - began > LONGEST:
                raise SystemExit(f"no step in {LONGEST} s; see {chaos.folder / 'log.txt'}")
            time.sleep(0.02)
        if toll.kinds:
            toll.back.append((new[0][3] if new else time.time()) - toll_moment(chaos, began))
        if toll.kinds.total() >= kills:
            if launcher.wait() != 0:
                raise SystemExit(f"the run failed; see {chaos.folder / 'log.txt'}")
            return
        time.sleep(dice.uniform(0, 0.5))
        if launcher.poll() is not None:
            if launcher.returncode:
                raise SystemExit(f"the run failed; see {chaos.folder / 'log.txt'}")
            return  # it ended before it could be killed
        strike(chaos, launcher, before, dice, toll)


def toll_moment(chaos: Chaos, began: float) -> float:
    """When the last kill was: kept beside the run, so that what is measured includes the wait."""
    return float((chaos.folder / "kill.txt").read_text() or began)


def strike(
    chaos: Chaos, launcher: subprocess.Popen[bytes], before: int, dice: random.Random, toll: Toll
) -> None:
    """One kill of one kind, and what it left."""
    kind = dice.choice(["a rank killed", "the launcher killed", "SIGTERM"])
    workers = sorted({(rank, process) for process, rank, _, _ in chaos.told(before)})
    processes = [process for _, process in workers]
    (chaos.folder / "kill.txt").write_text(str(time.time()))
    if kind == "a rank killed":
        os.kill(dice.choice(processes), signal.SIGKILL)
    else:
        launcher.send_signal(signal.SIGKILL if kind == "the launcher killed" else signal.SIGTERM)
    launcher.wait()
    until = time.time() + 30
    while any(map(is_alive, processes)):
        if time.time() > until:
            raise SystemExit(f"processes {processes} live on after: {kind}")
        time.sleep(0.01)
    toll.kinds[kind] += 1
    toll.in_save += any((chaos.folder / "run").glob("*.tmp"))
    done = max(step for _, _, step, _ in chaos.told(before))  # since this start alone
    try:
        saved = chaos.position() if chaos.last.exists() else 0
    except UserError as error:
        print(error)
        toll.unreadable += 1
        return
    # A rank that is killed takes the others with it; all else is told, and saves before it ends.
    (toll.lost if kind == "a rank killed" else toll.lost_to_term).append(done - saved)


def make_images(folder: Path) -> Path:
    """Small noisy images with a square to find."""
    numbers = np.random.default_rng(0)
    for side in ("imgs", "masks"):
        (folder / side).mkdir(parents=True)
    for n in range(IMAGES):
        pixels = numbers.integers(0, 90, (32, 32, 3), dtype=np.uint8)
        mask = np.zeros((32, 32), np.uint8)
        top, left = numbers.integers(2, 20, 2)
        pixels[top : top + 10, left : left + 10] += 120
        mask[top : top + 10, left : left + 10] = 255
        Image.fromarray(pixels).save(folder / "imgs" / f"n{n}q.png")
        Image.fromarray(mask).save(folder / "masks" / f"n{n}q.png")
    return folder


def same_weights(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same bits: weights, moving average, optimizer."""
    a, b = checkpoint.load(one), checkpoint.load(other)
    moments = [
        torch.equal(value, b["optimizer"]["state"][number][name])
        for number, state in a["optimizer"]["state"].items()
        for name, value in state.items()
    ]
    weights = [torch.equal(a[part][k], b[part][k]) for part in ("model", "ema") for k in a[part]]
    return all(moments) and all(weights) and a["best"] == b["best"]


def rows(run: Path) -> list[list[str]]:
    """What metrics.csv says of the run, times left out."""
    with (run / "metrics.csv").open(newline="") as file:
        return [
            [row[c] for c in row if c not in ("seconds", "images_per_second", "data_wait")]
            for row in csv.DictReader(file)
        ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--augmentation", default="photo")
    options = parser.parse_args(argv)
    flags = ["--augmentation", options.augmentation, "--ema", "0.9"]
    steps_per_epoch = (IMAGES - round(IMAGES / 10)) // 4
    epochs = max(2, options.kills * STEPS_PER_KILL // steps_per_epoch)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        images = make_images(Path(home, "data"))
        how = {"ranks": options.ranks, "epochs": epochs, "flags": flags}
        calm = Chaos(Path(home, "calm"), images, **how)
        if calm.start(0).wait() != 0:
            print((calm.folder / "log.txt").read_text())
            return 1
        toll, wild = Toll(), Chaos(Path(home, "wild"), images, **how)
        began = time.time()
        try:
            disturb(wild, options.kills, options.seed, toll)
        except SystemExit:
            print((wild.folder / "log.txt").read_text()[-6000:])
            raise
        same = same_weights(calm.last, wild.last)
        same_rows = rows(calm.folder / "run") == rows(wild.folder / "run")
        report(toll, options, epochs * steps_per_epoch, time.time() - began, same, same_rows)
        sound = same and same_rows and not toll.unreadable
        return 0 if sound and max(toll.lost + toll.lost_to_term, default=0) <= LOST_AT_MOST else 1


def report(
    toll: Toll, options: argparse.Namespace, steps: int, seconds: float, same: bool, same_rows: bool
) -> None:
    """The table."""
    back = sorted(toll.back) or [float("nan")]
    table = [
        ("ranks, steps of the run, save every", f"{options.ranks}, {steps}, {SAVE_EVERY} steps"),
        ("kills", f"{toll.kinds.total()} ({', '.join(f'{k}: {n}' for k, n in sorted(toll.kinds.items()))})"),
        ("kills that hit a save", str(toll.in_save)),
        ("restarts", str(len(toll.back))),
        ("steps lost, a rank killed", f"most {max(toll.lost, default=0)}, in all {sum(toll.lost)}"),
        ("steps lost, otherwise", f"most {max(toll.lost_to_term, default=0)}, in all {sum(toll.lost_to_term)}"),
        ("seconds to come back", f"median {statistics.median(back):.1f}, most {back[-1]:.1f}"),
        ("last.pt unreadable after a kill", str(toll.unreadable)),
        ("metrics.csv as undisturbed", "yes" if same_rows else "NO"),
        ("final state bit-identical", "yes" if same else "NO"),
        ("minutes", f"{seconds / 60:.1f}"),
    ]  # fmt: skip
    for name, value in table:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    sys.exit(main())
