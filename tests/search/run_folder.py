"""A run's folder under all that may happen to it, as a state machine of a user's acts."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from PIL import Image

from tests.conftest import make_set
from tests.search.disk import REFUSED, Fault
from tests.search.promise import World

NAMES = ["", "a", "b", "x.tmp", "evaluation", "epoch_1.pt", "last.pt", "[ab]*", "-r", "ü\n1"]
OWN = [
    "notes.tmp", "last.pt.tmp", "x.tmp/notes.txt", "config.yaml", "report.html", "samples.png",
    "split.csv", "data.csv", "best (copy).pt", "epoch_best.pt", "events.out.tfevents.1.other",
    "evaluation/report.html", "evaluation/notes.txt", "learning_rate.csv",
    "epoch_0002.pt",
]  # fmt: skip
SETTINGS = [
    "--lr=0.3", "--lr=1e-9", "--ema=0.9", "--save-every=1", "--save-every=2", "--save-every-steps=1",
    "--patience=1", "--nodata=nan", "--ignore-index=77", "--rescue-dir=rescue", "--epochs=1",
    "--epochs=5", "--batch-size=4", "--validation=0", "--loss=ce", "--scale=0.5",
]  # fmt: skip
WRITTEN = ["last.pt", "best.pt", "epoch_0", "metrics.csv", "config.yaml", "run.json", ".replaced"]
LIMITS = ["--stop-after=1epochs", "--stop-after=2epochs", "--stop-after=1", "--stop-after=3"]
KINDS = ["kill"] * 6 + ["ENOSPC", "EDQUOT", "EROFS", "EIO", "EPERM", "SIGTERM", "SIGINT", "clock"]

COMMON = settings(
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    phases=[Phase.generate],
)

names = st.sampled_from(["a", ""] * 3 + NAMES)
changes = st.lists(st.sampled_from(SETTINGS), max_size=2, unique_by=lambda s: s.split("=")[0])
limits = st.sampled_from([[], *([limit] for limit in LIMITS)])
refusals = st.builds(
    Fault, st.sampled_from([*REFUSED]), st.integers(0, 9), on=st.sampled_from(WRITTEN)
)
faults = (
    st.none()
    | refusals
    | st.builds(Fault, st.sampled_from(KINDS), st.integers(0, 70), st.booleans())
)
launchers = st.sampled_from([None, None, "job"])


@cache
def data_set() -> Path:
    """Return a set of 12 images, made once, whose masks have a value to be ignored."""
    folder = make_set(Path(tempfile.mkdtemp(prefix="search-")), 12, size=(32, 32))
    for path in (folder / "masks").iterdir():
        mask = np.array(Image.open(path))
        mask[0] = 77
        Image.fromarray(mask).save(path)
    return folder


class RunFolders(RuleBasedStateMachine):
    """Runs in the folders of one user; each start of the program is checked, see `World`."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory(prefix="search-")
        self.world = World(Path(self.place.name, "w"), data_set())
        self.settings: dict[str, list[str]] = {}

    @rule(name=names, flags=changes, limit=limits, fault=faults, late=st.booleans(),
          launcher=launchers, overwrite=st.booleans())  # fmt: skip
    def begin(
        self, name: str, flags: list[str], limit: list[str], overwrite: bool, **how: Any
    ) -> None:
        flags = self.settings[name] = _complete(flags, "--epochs=3")
        self.world.start(name, [*flags, *limit, *["--overwrite"] * overwrite], **how)

    @precondition(lambda self: self.settings)
    @rule(
        pick=st.integers(0, 9), limit=limits, fault=faults, late=st.booleans(), launcher=launchers
    )
    def repeat(self, pick: int, limit: list[str], **how: Any) -> None:
        """Start with the same settings again, as a launcher does."""
        name = self._pick(pick)
        self.world.start(name, [*self.settings[name], *limit], **how)

    @precondition(lambda self: self.settings)
    @rule(pick=st.integers(0, 9), flags=changes, limit=limits, fault=faults, late=st.booleans(),
          says_all=st.booleans())  # fmt: skip
    def resume(
        self, pick: int, flags: list[str], limit: list[str], says_all: bool, **how: Any
    ) -> None:
        name = self._pick(pick)
        given = _complete(flags, *self.settings[name]) if says_all else flags
        self.world.start(name, ["--resume", *given, *limit], **how)

    @precondition(lambda self: self._older())
    @rule(pick=st.integers(0, 9), flags=changes, limit=limits, fault=faults, late=st.booleans(),
          overwrite=st.booleans())  # fmt: skip
    def go_back(
        self, pick: int, flags: list[str], limit: list[str], overwrite: bool, **how: Any
    ) -> None:
        name, file = self._older()[pick % len(self._older())]
        given = ["--resume", str(Path("checkpoints", name, file)), *flags, *limit]
        self.world.start(name, [*given, *["--overwrite"] * overwrite], **how)

    @rule(name=names, file=st.sampled_from(OWN), flags=changes)
    def place_own(self, name: str, file: str, flags: list[str]) -> None:
        lines = [
            flag[2:].replace("=", ": ").replace("-", "_") for flag in flags[:1] if "lr" in flag
        ]
        self.world.place(name, file, "\n".join(lines) if file == "config.yaml" else "my own\n")

    @precondition(lambda self: self.settings)
    @rule(pick=st.integers(0, 9), which=st.integers(0, 30), how=st.sampled_from(["flip", "cut", "empty"]),
          at=st.floats(0, 0.999))  # fmt: skip
    def corrupt(self, pick: int, which: int, how: str, at: float) -> None:
        name = self._pick(pick)
        if files := self.world.files(name):
            self.world.spoil(name, files[which % len(files)].name, how, at)

    @precondition(lambda self: self.settings)
    @rule(pick=st.integers(0, 9), name=st.sampled_from(["copy", "copy 2"]))
    def copy(self, pick: int, name: str) -> None:
        source = self._pick(pick)
        self.world.copy(source, name)
        if name in self.world.runs:
            self.settings[name] = self.settings[source]

    def _pick(self, number: int) -> str:
        return list(self.settings)[number % len(self.settings)]

    def _older(self) -> list[tuple[str, str]]:
        """Return the runs and names of checkpoints to go back to."""
        return [
            (name, path.name)
            for name in self.settings
            for path in self.world.files(name)
            if path.name.startswith("epoch_") and path.name not in self.world.runs[name].spoiled
        ]

    def teardown(self) -> None:
        """Continue each run to its end, or begin it again."""
        try:
            for name, flags in self.settings.items():
                if not self.world.is_broken:
                    resumes = ["--resume"] if self.world.runs[name].position else []
                    self.world.start(name, [*resumes, *flags])
        finally:
            self.place.cleanup()


def _complete(flags: list[str], *others: str) -> list[str]:
    """Return `flags`, and those of `others` that they do not give."""
    given = {flag.split("=")[0] for flag in flags}
    return [*flags, *(flag for flag in others if flag.split("=")[0] not in given)]
