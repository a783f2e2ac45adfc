"""Seconds to a validation Dice on cars not trained on, and mIoU after some minutes on street scenes.

    python -m benchmarks.speedrun --carvana ../shared/data/carvana
    python -m benchmarks.speedrun --camvid ../shared/data/camvid --minutes 10

Whole programs, started as a user does, from their start on: imports, reading the files, with an
empty cache. train.py with the data, the scale and the width alone, against benchmarks.plain. They
take turns; each turn has another seed and leaves out another car, or drive. After each epoch all
score the same images, by the pixels of all of them together; a program is stopped when it has
reached the highest mark. Seconds are of the machine as it is: look at its load. Processor seconds,
of a program and its reading processes, hardly depend on it if OMP_NUM_THREADS=1 keeps threads from
waiting for each other.
"""

from __future__ import annotations

import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing import machine, new_parser, print_table

ROOT = Path(__file__).parent.parent
MARKS = (0.95, 0.97)


class Task(NamedTuple):
    """A data set, and how it is trained on."""

    folder: Path
    group: str  # the text of a name that says which images belong together
    scale: float
    classes: int
    ignored: int
    epochs: int
    minutes: float

    def write_pairs(self, turn: int, path: Path) -> Path:
        """Write the list of pairs; one group of images, another in each turn, is for validation."""
        images = sorted((self.folder / "imgs").iterdir())
        groups = [re.match(self.group, image.name).group() for image in images]  # type: ignore[union-attr]
        out = sorted(set(groups))[turn % len(set(groups))]
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("image", "mask", "split"))
            for image, group in zip(images, groups, strict=True):
                mask = next((self.folder / "masks").glob(f"{image.stem}[._]*"))
                writer.writerow((image, mask, "validation" if group == out else "training"))
        return path


def train(checkout: Path, width: int, *flags: str) -> Callable[[Task, Path, int, Path], list[str]]:
    """Return the command of a train.py, as a function of the task, its pairs, the seed and a folder."""

    def command(task: Task, pairs: Path, seed: int, home: Path) -> list[str]:
        budget = ["--budget", f"{task.minutes}m"] if task.minutes else []
        ignored = ["--ignore-index", str(task.ignored)] if task.ignored >= 0 else []
        return [
            str(checkout / "train.py"), "--list", str(pairs), "--scale", str(task.scale),
            "--width", str(width), "--seed", str(seed), "--checkpoints", str(home / "run"),
            *budget, *ignored, *flags,
        ]  # fmt: skip

    return command


def plain(width: int) -> Callable[[Task, Path, int, Path], list[str]]:
    """Return the command of the plain loop, as `train` does."""

    def command(task: Task, pairs: Path, seed: int, home: Path) -> list[str]:
        numbers = (task.scale, width, task.classes, task.ignored, seed, task.epochs, task.minutes)
        return ["-m", "benchmarks.plain", str(pairs), *map(str, numbers)]

    return command


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


def run(argv: list[str], cwd: Path, home: Path, *, until: float) -> Run:
    """Start a program, follow its lines until its Dice is `until`, and stop it."""
    environment = os.environ | {
        "PYTHONPATH": str(cwd), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    seconds, cpu, dice, began = [], [], [], time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *argv], cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=(home / "errors").open("w"),
    ) as program:  # fmt: skip
        iou = float("nan")
        for line in program.stdout or ():
            if found := re.match(
                r"epoch \d+:.*? validation Dice ([\d.]+)(?:, IoU ([\d.]+))?", line
            ):
                seconds.append(time.perf_counter() - began)
                cpu.append(processor_seconds(program.pid))
                dice.append(float(found[1]))
                iou = float(found[2] or "nan")
                if dice[-1] >= until:
                    program.terminate()
    if not dice:
        raise RuntimeError((home / "errors").read_text())
    if (home / "run" / "metrics.csv").exists():
        with (home / "run" / "metrics.csv").open() as file:
            iou = float(list(csv.DictReader(file))[-1]["validation_iou"])
    return Run(seconds, cpu, dice, iou)


def spread(values: Sequence[float | None], digits: int = 1) -> str:
    """Return mean, deviation and range of the turns that have a value, and how many these are."""
    known = [value for value in values if value is not None]
    if not known:
        return "not reached"
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    text = f"{statistics.mean(known):.{digits}f} ± {deviation:.{digits}f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)} turns)"


def over(values: Sequence[float | None], base: Sequence[float | None]) -> str:
    """Return the median ratio of the turns in which both have a value, with lowest and highest."""
    both = [(a, b) for a, b in zip(values, base, strict=True) if a is not None and b is not None]
    ratios = sorted(a / b for a, b in both)
    return (
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--carvana", type=Path)
    parser.add_argument("--camvid", type=Path)
    parser.add_argument("--minutes", type=float, default=10, help="for the CamVid frames")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--against", type=Path, help="checkout of another version, for a further row"
    )
    parser.add_argument("--only", nargs="+", help="names of the programs to start")
    options = parser.parse_args(argv)
    programs = {
        "plain 16": (ROOT, plain(16)),
        "plain 32": (ROOT, plain(32)),
        "train.py 16": (ROOT, train(ROOT, 16)),
        "train.py 16 --precision float32": (ROOT, train(ROOT, 16, "--precision=float32")),
    }
    if options.against:
        other = options.against.resolve()
        programs["the other train.py 16"] = (other, train(other, 16))
    programs = {n: p for n, p in programs.items() if options.only is None or n in options.only}
    print(machine())
    tasks = {}
    if options.carvana:
        tasks["carvana"] = Task(options.carvana.resolve(), "[^_]*", 0.125, 2, -1, 10, 0)
    if options.camvid:
        classes, minutes = 11, options.minutes
        tasks["camvid"] = Task(options.camvid.resolve(), ".{6}", 0.5, classes, 11, 9999, minutes)
    for name, task in tasks.items():
        runs: dict[str, list[Run]] = {program: [] for program in programs}
        for turn in range(options.seeds):
            for program in programs if turn % 2 == 0 else reversed(programs):
                cwd, command = programs[program]
                with tempfile.TemporaryDirectory() as folder:
                    home = Path(folder)
                    pairs = task.write_pairs(turn, home / "pairs.csv")
                    until = MARKS[-1] if name == "carvana" else 2.0
                    done = run(command(task, pairs, turn, home), cwd, home, until=until)
                runs[program].append(done)
                story = " ".join(
                    f"{s:.0f}s:{c:.0f}:{d:.3f}" for s, c, d in zip(*done[:3], strict=True)
                )
                print(f"{name}, turn {turn}, {program}: {story}, IoU {done.iou:.4f}", flush=True)
        print(f"load of the last 15 minutes: {os.getloadavg()[2]:.1f}\n")
        report = report_times if name == "carvana" else report_scores
        report(runs)
    return 0


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
