from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.search.run_folder import COMMON, RunFolders

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::ResourceWarning",
)


def test_a_run_folder_keeps_everything() -> None:
    few = settings(COMMON, derandomize=True, max_examples=8, stateful_step_count=5)
    run_state_machine_as_test(RunFolders, settings=few)


@pytest.mark.thorough
def test_a_run_folder_keeps_everything_in_long_lives() -> None:
    many = settings(COMMON, derandomize=True, max_examples=60, stateful_step_count=12)
    run_state_machine_as_test(RunFolders, settings=many)
