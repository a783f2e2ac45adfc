"""From `python train.py` to the end of its first step, over importing torch, and from Python over train.py.

    python -m benchmarks.start

The second start on a data set, whose scan and decoded pairs are cached: imports, the command line,
the scan of 100 pairs, the network, one step of four images, last.pt, the exit.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.images import make_images
from benchmarks.timing import machine, new_parser, print_table, take_turns

PYTHON = """
import sys
import unet_ddp
unet_ddp.train(
    images=sys.argv[1], masks=sys.argv[2], checkpoints=sys.argv[3], cache=True, stop_after=1, width=16
)
"""
TRAIN = Path(__file__).parent.parent / "train.py"


def run(*argv: str) -> None:
    """Run Python on `argv` and wait for it."""
    subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL)


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        folders = (f"{home}/run{number}" for number in itertools.count())
        pairs = make_images(Path(home) / "data", 100)
        flags = [*pairs, "--cache", "--stop-after", "1", "--width", "16"]
        took = take_turns(
            {
                "train.py --stop-after 1": lambda: run(
                    str(TRAIN), *flags, "--checkpoints", next(folders)
                ),
                "unet_ddp.train(stop_after=1)": lambda: run(
                    "-c", PYTHON, *pairs[1::2], next(folders)
                ),
                "import torch": lambda: run("-c", "import torch"),
            },
            options.turns,
        )
    print(machine())
    rows = [(name, f"{turns.median:.2f}") for name, turns in took.items()]
    whole, python, importing = took.values()
    ratios = [
        ("train.py / torch", whole.over(importing)),
        ("Python / train.py", python.over(whole)),
    ]
    print_table(("", "seconds"), [*rows, *ratios])
    return 0


if __name__ == "__main__":
    sys.exit(main())
