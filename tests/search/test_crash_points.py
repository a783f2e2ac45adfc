from __future__ import annotations

import random

import pytest

from tests.search.crash_points import PHASES, check_some
from tests.search.run_folder import data_set
from tests.search.test_run_folder import pytestmark as pytestmark


def find_broken(phase: str, most: int) -> list[str]:
    cases = check_some(data_set(), random.Random(1), [phase], most)
    return [f"{how}: {broken}" for _, how, broken in cases if broken]


@pytest.mark.parametrize("phase", PHASES)
def test_a_start_after_a_crash_loses_nothing(phase: str) -> None:
    assert not find_broken(phase, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "phase",
    [pytest.param(phase, marks=[pytest.mark.release] * (phase != "overwrite")) for phase in PHASES],
)
def test_a_start_after_any_crash_loses_nothing(phase: str) -> None:
    assert not find_broken(phase, 15)
