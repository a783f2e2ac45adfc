"""The same small run over and over: memory, open files and the bits of its end.

    python -m benchmarks.soak --cycles 200 --runs 20

Cycles: one process resumes a run, takes one step, saves and stops, again and again; in the end the
state is that of an undisturbed run, and neither memory nor open files have grown. Runs: whole ones
of two ranks under torchrun, each of which must end well. Attempts: under --max-restarts 3 a rank
crashes at every one of them.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chaos import TORCHRUN, same_weights
from benchmarks.images import make_images
from benchmarks.timing import new_parser, print_table
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.commands import train

ROOT = Path(__file__).parent.parent
IMAGES, STEPS_PER_EPOCH = 40, 18  # of 36 training images, two in a step
CRASHING = """
import sys
sys.path.insert(0, {root!r})
from unet_ddp.commands import train
from unet_ddp.training.guard import FiniteGuard
def crash(self, report, step):
    if self.world.rank == 1:
        print("attempt", flush=True)
        raise RuntimeError("crashed on purpose")
FiniteGuard.check = crash
train.main()
"""

Row = tuple[str, object]


def run_quietly(argv: list[str]) -> None:
    """Run train.py in this process; RuntimeError with its output if it fails."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            train.main(argv)
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(output.getvalue()) from stop


def resident() -> float:
    """Return the MiB of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cycle(home: Path, flags: list[str], cycles: int) -> list[Row]:
    """Save and resume in one process."""
    flags = [*flags, "--batch-size", "2", "--epochs", str(-(-cycles // STEPS_PER_EPOCH))]
    run_quietly([*flags, "--checkpoints", str(home / "calm"), "--stop-after", str(cycles)])
    run_quietly([*flags, "--checkpoints", str(home / "run"), "--stop-after", "1"])
    resume = ["--resume", "--checkpoints", str(home / "run"), "--workers", "0", "--stop-after"]
    memory, files, began = [], set(), time.perf_counter()
    for done in range(2, cycles + 1):
        run_quietly([*resume, str(done)])
        memory.append(resident())
        files.add(len(list(Path("/proc/self/fd").iterdir())))
    seconds = (time.perf_counter() - began) / max(1, len(memory))
    early = max(memory[: max(1, len(memory) // 10)])
    growth = f"{memory[-1] / early - 1:+.1%} of {early:.0f} MiB"
    same = same_weights(home / "calm" / "last.pt", home / "run" / "last.pt")
    return [
        ("cycles of resume, step, save in one process", cycles),
        ("final state bit-identical", "yes" if same else "NO"),
        ("memory after the last, over the most in the first tenth", growth),
        ("open files after each", ", ".join(map(str, sorted(files)))),
        ("seconds per cycle", f"{seconds:.2f}"),
    ]


def repeat(home: Path, flags: list[str], runs: int) -> list[Row]:
    """Start whole runs under torchrun."""
    flags = [*flags, "--batch-size", "1", "--epochs", "1", "--stop-after", "5"]
    folders = [home / f"clean{run}" for run in range(runs)]
    start = [*TORCHRUN, "2", str(ROOT / "train.py"), *flags, "--checkpoints"]
    statuses = [
        subprocess.run([*start, str(folder)], capture_output=True, check=False).returncode
        for folder in folders
    ]
    same = sum(same_weights(folders[0] / "last.pt", folder / "last.pt") for folder in folders)
    return [
        ("runs of 2 ranks under torchrun that ended well", f"{statuses.count(0)} of {runs}"),
        ("of these, with the same bits", f"{same} of {runs}"),
    ]


def crash(home: Path, flags: list[str]) -> list[Row]:
    """Start a run that crashes at every attempt."""
    program, folder = home / "crashing.py", home / "crash"
    program.write_text(CRASHING.format(root=str(ROOT)))
    flags = [*flags, "--batch-size", "1", "--checkpoints", str(folder)]
    done = subprocess.run(
        [*TORCHRUN, "2", "--max-restarts=3", str(program), *flags],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    content = checkpoint.load(folder / "last.pt")  # raises if it can't be read
    attempts = done.stdout.count("attempt\n")
    return [
        ("attempts of a run that crashes at each, --max-restarts 3", attempts),
        ("its status; last.pt contains", f"{done.returncode}; step {content['position']['step']}"),
    ]


def main(argv: list[str] | None = None) -> int:
    """Print the table; return 1 if the cycles did not end as the undisturbed run."""
    parser = new_parser(__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        flags = make_images(home / "data", IMAGES, (32, 32))
        flags += ["--width", "4", "--workers", "0", "--ema", "0.9"]
        rows = cycle(home, flags, options.cycles)
        if options.runs:
            rows += repeat(home, flags, options.runs) + crash(home, flags)
    print_table(("", ""), rows)
    return 1 if any(value == "NO" for _, value in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
