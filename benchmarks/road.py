"""How much of the package one photo and one training step go through.

    python -m benchmarks.road [--names]

Functions of unet_ddp that are entered, each once, and their modules: by `predict.py` for one photo, by
`train.py` before its first step, and by one step of it. Threads are counted, reading processes are not.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import unet_ddp
from benchmarks.images import make_images
from benchmarks.timing import new_parser, print_table

PACKAGE = str(Path(unet_ddp.__file__).parent)
STEP = "training/step.py:train_step"
FLAGS = ["--epochs", "1", "--width", "4", "--batch-size", "2", "--workers", "0", "--device", "cpu"]
Road = dict[str, None]
"""Functions as `file:name`, in the order in which they are entered."""


@contextlib.contextmanager
def following(note: Callable[[str], None]) -> Iterator[None]:
    """Have `note` called with the name of each function of the package that is entered."""

    def enter(frame: FrameType, event: str, _: Any) -> None:
        code: CodeType = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class or of a module
            return
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<":
            name = getattr(code, "co_qualname", code.co_name)
            note(f"{Path(code.co_filename).relative_to(PACKAGE)}:{name}")

    threading.setprofile(enter)  # a photo is read, predicted and written in a thread
    sys.setprofile(enter)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def run(main: Callable[[Sequence[str]], object], argv: Sequence[str]) -> None:
    """Run a command without its output; it must succeed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        status = main(argv)
        if status:
            raise RuntimeError(f"{argv}: exit status {status}")


def measure(folder: Path) -> dict[str, Road]:
    """Return the roads by name; files are written into `folder`."""
    from unet_ddp.commands import predict, train

    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    data = make_images(folder / "data", 10)
    before: Road = {}
    step: Road = {}
    steps = 0

    def note_training(name: str) -> None:
        nonlocal steps
        steps += name == STEP
        if steps == 0:
            before[name] = None
        elif steps == 2:  # the second, from its first line to the third's
            step[name] = None

    with following(note_training):
        run(train.main, [*data, *FLAGS, "--checkpoints", str(folder / "run")])
    photo: Road = {}
    image = next((folder / "data" / "imgs").iterdir())
    argv = [str(image), "--model", str(folder / "run"), "--device", "cpu", "-o"]
    run(predict.main, [*argv, str(folder / "first.png")])  # imports
    with following(lambda name: photo.update({name: None})):
        run(predict.main, [*argv, str(folder / "second.png")])
    return {"one photo, predict.py": photo, "before the first step": before, "one step": step}


def main(argv: list[str] | None = None) -> int:
    """Print a table."""
    parser = new_parser(__doc__)
    parser.add_argument("--names", action="store_true", help="print the functions, too")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        roads = measure(Path(folder))
    rows = [
        (name, str(len(road)), str(len({each.partition(":")[0] for each in road})))
        for name, road in roads.items()
    ]
    print_table(("", "functions", "modules"), rows)
    for name, road in roads.items() if options.names else ():
        print(f"\n{name}:", *road, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
