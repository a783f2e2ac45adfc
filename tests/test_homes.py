"""The quick start on hostile machines: it works, or one line says what the machine lacks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.homes import HOMES
from tests.ranks import ROOT, python

pytestmark = pytest.mark.processes
FEW = ["read-only root", "long TMPDIR", "no loopback, ranks", "a nameless user", "24 files"]
REST = [name for name in HOMES if name not in FEW]
AT_ONCE = 8  # homes of a process, which imports once


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


def find_faults(folder: Path, names: list[str]) -> None:
    done = python(
        folder, str(ROOT / "tests" / "homes.py"), str(folder / "home"), *names, PYTHONPATH=str(ROOT)
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["faults"] == []
    if len(found["impossible"]) == len(names):
        pytest.skip("this user can make no such homes")


@pytest.mark.thorough
def test_the_quick_start_in_a_few_hostile_homes(folder: Path) -> None:
    find_faults(folder, FEW)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "first",
    [pytest.param(k, marks=pytest.mark.release) for k in range(0, len(REST), AT_ONCE)],
)
def test_the_quick_start_in_every_hostile_home(folder: Path, first: int) -> None:
    find_faults(folder, REST[first : first + AT_ONCE])
