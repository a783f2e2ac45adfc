"""The same small run over and over: what grows, what is left behind, what goes wrong once in a while.

    python -m benchmarks.soak --cycles 200 --runs 20

Cycles: one process resumes a run, does one step, saves and stops, again and again; in the end the
state is that of an undisturbed run, and neither memory nor open files have grown. Runs: whole ones
of two ranks under torchrun, each of which must end well. Attempts: under --max-restarts 3 a rank
crashes at every one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import train
from benchmarks.chaos import make_images, same_weights
from unet_ddp.runs import checkpoint

ROOT = Path(__file__).parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
STEPS_PER_EPOCH = 18
CRASHING = """
import sys
sys.path.insert(0, {root!r})
import train
from unet_ddp.training.guard import FiniteGuard
def crash(self, report, step):
    if self.world.rank == 1:
        print("attempt", flush=True)
        raise RuntimeError("crashed on purpose")
FiniteGuard.look = crash
train.main()
"""


def quietly(words: list[str]) -> None:
    """train.py in this process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            train.main(words)
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(said.getvalue()) from stop


def resident() -> float:
    """MiB of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cycle(home: Path, flags: list[str], cycles: int) -> list[tuple[str, str]]:
    """Save and resume in one process; rows of the table."""
    flags = [*flags, "--batch-size", "2", "--epochs", str(-(-cycles // STEPS_PER_EPOCH))]
    stop = ["--max-steps", str(cycles)]
    quietly([*flags, "--checkpoints", str(home / "calm"), *stop])
    quietly([*flags, "--checkpoints", str(home / "run"), "--max-steps", "1"])
    seen, began = [], time.perf_counter()
    for done in range(2, cycles + 1):
        quietly(["--resume", "--checkpoints", str(home / "run"), "--workers", "0", "--max-steps", str(done)])  # fmt: skip
        seen.append((resident(), len(list(Path("/proc/self/fd").iterdir()))))
    early = max(m for m, _ in seen[: max(1, len(seen) // 10)])
    grown = seen[-1][0] / early - 1
    files = sorted({count for _, count in seen})
    same = same_weights(home / "calm" / "last.pt", home / "run" / "last.pt")
    return [
        ("cycles of resume, step, save in one process", str(cycles)),
        ("final state bit-identical", "yes" if same else "NO"),
        ("memory after the last, over the most in the first tenth", f"{grown:+.1%} of {early:.0f} MiB"),
        ("open files after each", ", ".join(map(str, files))),
        ("seconds per cycle", f"{(time.perf_counter() - began) / max(1, len(seen)):.2f}"),
    ]  # fmt: skip


def repeat(home: Path, flags: list[str], runs: int) -> list[tuple[str, str]]:
    """Whole runs under torchrun."""
    statuses = []
    for number in range(runs):
        words = [*flags, "--batch-size", "1", "--epochs", "1", "--max-steps", "5"]
        words += ["--checkpoints", str(home / f"clean{number}")]
        done = subprocess.run([*TORCHRUN, str(ROOT / "train.py"), *words], capture_output=True, check=False)  # fmt: skip
        statuses.append(done.returncode)
    first = home / "clean0" / "last.pt"
    same = sum(same_weights(first, home / f"clean{n}" / "last.pt") for n in range(runs))
    return [
        ("runs of 2 ranks under torchrun that ended well", f"{statuses.count(0)} of {runs}"),
        ("of these, with the same bits", f"{same} of {runs}"),
    ]


def crash(home: Path, flags: list[str]) -> list[tuple[str, str]]:
    """A run that crashes at every attempt."""
    program = home / "crashing.py"
    program.write_text(CRASHING.format(root=str(ROOT)))
    words = [*flags, "--batch-size", "1", "--checkpoints", str(home / "crash")]
    restarts = [*TORCHRUN, "--max-restarts=3", str(program), *words]
    done = subprocess.run(restarts, capture_output=True, text=True, check=False)
    content = checkpoint.load(home / "crash" / "last.pt")  # raises where it can't be read
    return [
        ("attempts of a run that crashes at each, --max-restarts 3", str(done.stdout.count("attempt\n"))),
        ("its status; last.pt holds", f"{done.returncode}; step {content['position']['step']}"),
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        os.environ["XDG_CACHE_HOME"] = name
        images = make_images(home / "data")
        flags = ["--images", str(images / "imgs"), "--masks", str(images / "masks")]
        flags += ["--width", "4", "--workers", "0", "--ema", "0.9"]
        rows = cycle(home, flags, options.cycles)
        if options.runs:
            rows += repeat(home, flags, options.runs) + crash(home, flags)
    print("| | |\n|---|---|")
    for what, value in rows:
        print(f"| {what} | {value} |")
    return 1 if any(value == "NO" for _, value in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
