"""Acts of a user: done again, and as few of them as break a promise."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.search.disk import Fault
from tests.search.program import BrokenError
from tests.search.promise import World

Acts = Sequence[tuple[Any, ...]]
KEPT: list[Acts] = [
    [
        ("place", "", "notes.tmp", "my own"), ("place", "", "epoch_best.pt", "my own"),
        ("start", "x.tmp", ["--stop-after=1"], None, False, None),
        ("start", "evaluation", [], None, False, None),
        ("start", "", ["--overwrite"], None, False, None),
    ],
    [("start", "a", ["--stop-after=2epochs"], Fault("ENOSPC", 2, on="metrics.csv"), False, None)],
    [("start", "a", ["--stop-after=2epochs", "--lr=1e-9"], Fault("ENOSPC", on="best.pt"), False, None)],
    *[
        [
            ("start", "", ["--stop-after=1"], fault, False, None),
            ("place", "", "config.yaml", "lr: 0.1"),
            ("start", "", ["--stop-after=1"], None, False, None),
        ]
        for fault in (Fault("EIO", 27, lasts=True), Fault("EIO", 33, lasts=True), Fault("kill", 31))
    ],
    [("start", "", ["--stop-after=1"], Fault("EIO", 0, lasts=True), False, None)],  # .lock
    [
        ("start", "-r", ["--resume", "--patience=1", "--validation=0"],
         Fault("EDQUOT", 0, lasts=True), False, None),  # the folder
    ],
    [
        ("start", "a", ["--stop-after=1epochs"], Fault("kill", 67), True, None),
        ("spoil", "a", "last.pt", "flip", 0.23),
        ("start", "a", [], None, False, None),  # to be followed: --resume, then --overwrite
    ],
    [
        ("start", "a", ["--save-every=1", "--validation=0", "--epochs=3"], None, True, None),
        ("start", "a", ["--resume", "checkpoints/a/epoch_0002.pt", "--overwrite"],
         Fault("EROFS", on="metrics.csv"), True, None),
    ],
]  # fmt: skip
"""Acts that once broke a promise, as `benchmarks.search` prints them."""


def replay(acts: Acts, data: Path) -> str:
    """Do acts again; return what was broken, or nothing."""
    with tempfile.TemporaryDirectory(prefix="search-") as place:
        world = World(Path(place, "w"), data)
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
