"""Search for unknown faults for as long as one likes, with random seeds.

    python -m benchmarks.search --minutes 30
    python -m benchmarks.search --minutes 5 --seed 7 run_folder

Each kind of finding is printed once, with the acts that repeat it; acts that are to be kept go into
the list of `tests/search/acts.py`.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.search import object_store, test_readers
from tests.search.crash_points import check_some
from tests.search.program import BrokenError, signature
from tests.search.run_folder import COMMON, RunFolders, data_set


class Found(NamedTuple):
    """What a search has tried, and what it has found: the steps by the kind of the fault."""

    counts: Counter[str]
    findings: dict[str, str]


def search_run_folder(until: float, number: int) -> Found:
    """Live the lives of run folders."""
    counts, findings = Counter[str](), dict[str, str]()
    chance = random.Random(number)
    lives: list[RunFolders] = []

    class Noted(RunFolders):
        def __init__(self) -> None:
            super().__init__()
            lives.append(self)

    while time.monotonic() < until:
        lives.clear()
        how = settings(COMMON, max_examples=8, stateful_step_count=chance.choice([3, 6, 12]))
        seed(chance.randrange(2**32))(Noted)
        try:
            run_state_machine_as_test(Noted, settings=how)
        except BrokenError as error:
            report(findings, f"{error}\n  acts: {lives[-1].world.acts}")
        counts["lives"] += len(lives)
        counts["starts"] += sum(len(life.world.starts) for life in lives)
    return Found(counts, findings)


def report(findings: dict[str, str], shown: str) -> None:
    """Print what was found, once of each kind."""
    kind = signature(shown)
    if kind not in findings:
        findings[kind] = shown
        print(f"{time.strftime('%H:%M:%S')} {shown}\n", flush=True)


def search_crash_points(until: float, number: int) -> Found:
    """Start from the states in which crashes leave a run."""
    counts, findings = Counter[str](), dict[str, str]()
    chance = random.Random(number)
    while time.monotonic() < until:
        for state, how, broken in check_some(data_set(), chance):
            counts["starts after a crash"] += 1
            if broken:
                report(findings, f"{broken}\n  {state}; {how}")
            if time.monotonic() > until:
                break
    return Found(counts, findings)


def search_object_store(until: float, number: int) -> Found:
    """Let two machines train one run in storage, with every fault of a request."""
    return _report_all("states of the store", *object_store.search_object_store(until, number))


def search_readers(until: float, number: int) -> Found:
    """Read files of all kinds that other libraries write."""
    return _report_all("files", *test_readers.search_readers(until, number))


def _report_all(unit: str, count: int, lines: list[str]) -> Found:
    findings = dict[str, str]()
    for line in lines:
        report(findings, line)
    return Found(Counter({unit: count}), findings)


SEARCHES: dict[str, Callable[[float, int], Found]] = {
    "run_folder": search_run_folder,
    "crash_points": search_crash_points,
    "object_store": search_object_store,
    "readers": search_readers,
}
"""Searches by name: from the time to end at (time.monotonic) and a seed to what was found."""


def main() -> None:
    """Search, and print what was tried and found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(SEARCHES))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    warnings.simplefilter("ignore")
    names = options.names or list(SEARCHES)
    for name in names:
        until = time.monotonic() + 60 * options.minutes / len(names)
        counts, findings = SEARCHES[name](until, options.seed)
        tried = ", ".join(f"{number} {what}" for what, number in counts.items())
        print(f"{name}: {tried}; {len(findings)} kinds of fault")


if __name__ == "__main__":
    main()
