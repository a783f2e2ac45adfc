"""Acts of a user: done again, and as few of them as break a promise."""

from __future__ import annotations

import tempfile
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from tests.search.disk import Fault
from tests.search.program import BrokenError, signature
from tests.search.promise import World

Acts = Sequence[tuple[Any, ...]]
KEPT: list[Acts] = [
    [
        ("place", "", "notes.tmp", "my own"), ("place", "", "epoch_best.pt", "my own"),
        ("start", "x.tmp", ["--max-steps=1"], None, False, None),
        ("start", "evaluation", [], None, False, None),
        ("start", "", ["--overwrite"], None, False, None),
    ],
    [("start", "a", ["--max-epochs=2"], Fault("ENOSPC", 2, on="metrics.csv"), False, None)],
    [("start", "a", ["--max-epochs=2", "--lr=1e-9"], Fault("ENOSPC", on="best.pt"), False, None)],
    *[
        [
            ("start", "", ["--max-steps=1"], fault, False, None),  # after the list of its files
            ("place", "", "config.yaml", "lr: 0.1"),
            ("start", "", ["--max-steps=1"], None, False, None),
        ]
        for fault in (Fault("EIO", 27, lasts=True), Fault("EIO", 33, lasts=True), Fault("kill", 31))
    ],
    [("start", "", ["--max-steps=1"], Fault("EIO", 0, lasts=True), False, None)],  # .lock
    [
        ("start", "-r", ["--resume", "--patience=1", "--validation=0"],
         Fault("EDQUOT", 0, lasts=True), False, None),  # the folder
    ],
    *[
        [
            ("start", "", [], None, False, None),
            ("spoil", "", ".files", how, 0.5),
            ("start", "", flags, None, False, None),
        ]
        for how in ("empty", "cut")
        for flags in ([], ["--resume", "--epochs=3"])
    ],
]  # fmt: skip
"""Acts that once broke a promise, as `benchmarks.search` prints them."""


def replay(acts: Acts, data: Path, forgiven: Container[str] = ()) -> str:
    """Do acts again; return what was broken, or nothing."""
    with tempfile.TemporaryDirectory(prefix="search-") as place:
        world = World(Path(place, "w"), data)
        world.forgiven = forgiven
        try:
            for what, *args in acts:
                if what == "start":
                    name, flags, fault, late, launcher = args
                    world.start(name, flags, fault, late=late, launcher=launcher)
                else:
                    getattr(world, what)(*args)
        except BrokenError as error:
            return str(error)
    return ""


def shorten(acts: Acts, data: Path, error: str, forgiven: Container[str]) -> tuple[list[Any], str]:
    """Return the fewest acts and flags that break the same promise, and how."""
    kind, acts = signature(error), list(acts)

    def breaks(shorter: list[Any]) -> bool:
        nonlocal acts, error
        found = replay(shorter, data, forgiven)
        if signature(found) == kind:
            acts, error = shorter, found
            return True
        return False

    for k in reversed(range(len(acts))):
        breaks(acts[:k] + acts[k + 1 :])
    for k in range(len(acts)):
        if acts[k][0] == "start":
            for j in reversed(range(len(acts[k][2]))):
                what, name, flags, *how = acts[k]
                breaks([*acts[:k], (what, name, flags[:j] + flags[j + 1 :], *how), *acts[k + 1 :]])
            what, name, flags, fault, late, launcher = acts[k]
            for how in ((None, False, None), (fault, False, launcher), (fault, late, None)):
                if how != acts[k][3:] and breaks(
                    [*acts[:k], (what, name, flags, *how), *acts[k + 1 :]]
                ):
                    break
    return acts, error
