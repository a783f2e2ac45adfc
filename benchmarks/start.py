"""From `python train.py` to the end of its first step, over importing torch.

    python -m benchmarks.start

The second start on a data set, whose scan and decoded pairs are kept (--cache): imports, the
command line, the scan of 100 pairs, the network, one step of four images, last.pt, the way out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.timing import machine, make_images, ratios, take_turns

ROOT = Path(__file__).parent.parent


def run(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        folders = (f"{home}/run{number}" for number in itertools.count())
        words = [
            str(ROOT / "train.py"), *make_images(Path(home) / "data", 100), "--cache",
            "--max-steps", "1", "--width", "16",
        ]  # fmt: skip
        works = [
            lambda: run(*words, "--checkpoints", next(folders)),
            lambda: run("-c", "import torch"),
        ]
        take_turns(works, 1)
        took = take_turns(works, options.turns)
    print(machine())
    print("| | seconds |\n|---|---|")
    for name, seconds in zip(("train.py --max-steps 1", "import torch"), took, strict=True):
        print(f"| {name} | {median(seconds):.2f} |")
    print(f"| ratio | {ratios(took[0], took[1])} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
