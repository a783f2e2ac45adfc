"""Any folder trains, or is refused in one line: every case of the catalogue, on one and two ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.data.checks.catalogue import CASES, prepare_case, run_numbered
from tests.ranks import Ranks

PAGE = Path(__file__).parent.parent / "docs" / "data.md"


@pytest.fixture(scope="module")
def single() -> Iterator[Ranks]:
    """A process beside the two of `ranks`, so that both sizes run at once."""
    pool = Ranks(1)
    yield pool
    pool.close()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.what for case in CASES])
def test_case(ranks: Ranks, single: Ranks, tmp_path: Path, number: int) -> None:
    for pool, size in ((single, 1), (ranks, 2)):
        pool.run(size, os.getpid)  # processes die with the thread that has started them: this one
    with ThreadPoolExecutor(2) as both:
        for done in both.map(run_on, (single, ranks), (1, 2), (tmp_path,) * 2, (number,) * 2):
            assert done


def run_on(ranks: Ranks, size: int, tmp_path: Path, number: int) -> bool:
    case = CASES[number]
    folder = tmp_path / str(size)
    folder.mkdir()
    prepare_case(number, str(folder))
    began = time.monotonic()
    outcomes = ranks.run(size, run_numbered, number, str(folder), case.words(folder))
    assert time.monotonic() - began < 10
    assert [status for status, _, _ in outcomes] == [case.status] * size, outcomes
    errors = "".join(err for _, _, err in outcomes).splitlines()
    if case.status:
        assert len(errors) == 1 and errors[0].startswith("error: "), errors
        said = errors[0]
    else:
        assert (folder / "checkpoints" / "last.pt").exists()
        said = "".join(out for _, out, _ in outcomes)
    for words in case.says:
        assert words in said
    assert "Traceback" not in "".join(errors)
    return True


def test_the_page_has_every_case() -> None:
    """docs/data.md is written by `python -m tests.catalogue`; a change of a case is to reach it."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for case in CASES:
        mine = [row for row in rows if row.startswith(f"| {case.what}")]
        assert mine, case.what
        if case.status:
            assert any(all(words in row for words in case.says) for row in mine), case.what
