"""Times of works that take turns, and the table they are printed in."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Turns:
    """The times that one work took, turn by turn."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Seconds of all cores in this process, which other programs disturb less."""

    @property
    def median(self) -> float:
        """The median of `seconds`."""
        return statistics.median(self.seconds)

    def over(self, other: Turns) -> str:
        """Return the ratio to the times of `other`, turn by turn: median, lowest and highest."""
        ratios = sorted(a / b for a, b in zip(self.seconds, other.seconds, strict=True))
        low, high = ratios[0], ratios[-1]
        return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f} in {len(ratios)})"


def take_turns(
    works: Mapping[str, Callable[[], object]], turns: int, *, warm_up: bool = True
) -> dict[str, Turns]:
    """Time each work turn by turn: a noisy machine then disturbs all of them alike.

    Args:
        works: the works by their names.
        turns: how often each is done.
        warm_up: do each once more before the first turn.
    """
    took = {name: Turns() for name in works}
    for turn in range(-warm_up, turns):
        for name in works if turn % 2 == 0 else reversed(works):
            began, cpu = time.perf_counter(), time.process_time()
            works[name]()
            if turn >= 0:
                took[name].seconds.append(time.perf_counter() - began)
                took[name].cpu.append(time.process_time() - cpu)
    return took


def describe_machine() -> str:
    """Return the processor, its threads in use, torch and the GPU."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cpu = names[0] if names else platform.machine()
    count = f"{torch.get_num_threads()} of {os.cpu_count()} threads"
    return f"{cpu}, {count}, torch {torch.__version__}, {gpu}"


def machine() -> str:
    """Return a line about where this runs."""
    return f"{describe_machine()}; ratios turn by turn: the median (lowest to highest)\n"


def spread(values: Sequence[float | None], digits: int = 1) -> str:
    """Return mean and deviation of the turns that have a value, and how many these are."""
    known = [value for value in values if value is not None]
    if not known:
        return "not reached"
    text = f"{statistics.mean(known):.{digits}f}"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.{digits}f}"
    return text if len(known) == len(values) else f"{text} ({len(known)} of {len(values)} turns)"


def print_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as Markdown, each row as soon as it is known."""
    print("|", " | ".join(map(str, head)), "|")
    print("|---" * len(head) + "|")
    for row in rows:
        print("|", " | ".join(map(str, row)), "|", flush=True)


def parse_checkout(description: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the `folder` of a checkout, by default this one, and whether its limits are to be checked."""
    parser = new_parser(description)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent.parent)
    parser.add_argument("--check", action="store_true", help="fail if a limit is broken")
    return parser.parse_args(argv)


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose --help is a benchmark's docstring."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
