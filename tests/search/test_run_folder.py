from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.search.acts import KEPT, Acts, replay
from tests.search.run_folder import COMMON, RunFolders, data_set

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::ResourceWarning",
)


@pytest.mark.parametrize(
    "acts", [KEPT[0], *(pytest.param(acts, marks=pytest.mark.thorough) for acts in KEPT[1:])]
)
def test_acts_that_once_lost_something_lose_nothing(acts: Acts) -> None:
    assert not replay(acts, data_set())


@pytest.mark.thorough
@pytest.mark.release
def test_a_run_folder_keeps_everything_in_long_lives() -> None:
    many = settings(COMMON, derandomize=True, max_examples=10, stateful_step_count=10)
    run_state_machine_as_test(RunFolders, settings=many)
