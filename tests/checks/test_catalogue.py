"""Any folder trains, or is refused in one line: every case of the catalogue."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from tests.checks.catalogue import CASES, PAGE, Case, make_case, run_case
from tests.ranks import Ranks
from unet_ddp.checks.check import check_classes, prepare_data
from unet_ddp.cli import parse_train
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.pairs import collect
from unet_ddp.errors import UserError, one_line

NAMES = [case.name for case in CASES]
LATER = {  # errors of what follows the check of the data
    "an image that vanishes after the check",
    "a mask that gets another value after the check",
    "a batch larger than the set",
}
BRIEF = {"several bad files at once", "a bad file, skipped", "twelve bands of 8 bit", *LATER}
"""Cases that run on ranks in each test run. Half of the others do in the thorough lane, and all before a release."""


def choose_marks(number: int, name: str) -> list[pytest.MarkDecorator]:
    if name in BRIEF:
        return []
    return [pytest.mark.thorough, *[pytest.mark.release] * (number % 2)]


@lru_cache
def parse_flags(argv: tuple[str, ...]) -> TrainConfig:
    return parse_train(argv)  # 0.1 s


def parse(case: Case, folder: Path) -> TrainConfig:
    config = parse_flags(tuple(case.argv(Path("{}"))))
    given = {name: value for name, value in vars(config.data).items() if isinstance(value, str)}
    placed = {name: value.replace("{}", str(folder)) for name, value in given.items()}
    return replace(config, data=replace(config.data, **placed))


@pytest.mark.filterwarnings("ignore:Image size")  # as by data/formats, which pytest undoes
@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_the_check_says_what_is_wrong_and_nothing_else_is_printed(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as for a user: pytest adds some
    case = make_case(number, tmp_path)
    config = parse(case, tmp_path)
    refused = False
    try:
        data = prepare_data(
            config.data, parts=DATA_PARTS, seed=0, skip_bad=config.launch.skip_bad_files
        )
        check_classes(data.labels, config.optimization.class_weights)
        lines = data.notes
        pairs = collect([*data.split.training, *data.split.validation])
        dataset = SegmentationDataset(
            pairs, data.labels, data.format, scale=1.0, resize_masks=config.data.resize_masks
        )
        for index in range(len(dataset)):
            assert not isinstance(dataset[0, index], UserError), pairs[index]
    except UserError as error:
        refused, lines = True, [one_line(error)]
    assert capfd.readouterr() == ("", "")
    assert refused == (case.status == 2 and case.name not in LATER), lines
    if case.name not in LATER:
        for text in case.says:
            assert text in "\n".join(lines)


@pytest.fixture(scope="module")
def single() -> Iterator[Ranks]:
    """Return a process besides the two of `ranks`, so that both sizes run at once."""
    pool = Ranks(1)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "number",
    [pytest.param(k, marks=choose_marks(k, case.name)) for k, case in enumerate(CASES)],
    ids=NAMES,
)
def test_it_trains_or_is_refused_on_one_and_two_ranks(
    ranks: Ranks, single: Ranks, tmp_path: Path, number: int
) -> None:
    for pool, size in ((single, 1), (ranks, 2)):
        pool.run(size, os.getpid)  # processes die with the thread that has started them: this one
    with ThreadPoolExecutor(2) as both:
        list(both.map(run_on, (single, ranks), (1, 2), (tmp_path,) * 2, (number,) * 2))


def run_on(ranks: Ranks, size: int, tmp_path: Path, number: int) -> None:
    folder = tmp_path / str(size)
    folder.mkdir()
    case = make_case(number, folder)
    began = time.monotonic()
    outcomes = ranks.run(size, run_case, number, str(folder))
    assert time.monotonic() - began < 60  # on a busy machine: no rank waits for the other
    assert [status for status, _, _ in outcomes] == [case.status] * size, outcomes
    errors = "".join(err for _, _, err in outcomes).splitlines()
    said = "".join(out for _, out, _ in outcomes)
    if case.status:
        assert len(errors) == 1 and errors[0].startswith("error: "), errors
        said = errors[0]
    else:
        assert not errors
        assert (folder / "checkpoints" / "last.pt").exists()
    for text in case.says:
        assert text in said


def test_the_page_has_every_case() -> None:
    """docs/catalogue.md is written by `python -m tests.checks.catalogue`."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for case in CASES:
        mine = [row for row in rows if row.startswith(f"| {case.name}")]
        assert mine, case.name
        if case.status:
            assert any(all(text in row for text in case.says) for row in mine), case.name
