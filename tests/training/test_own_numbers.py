"""Plain numbers of a user's part are read from a checkpoint as they were: each digit, and their type."""

from __future__ import annotations

import math
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import data_flags, make_set
from tests.ranks import call_train
from unet_ddp.checkpoints.file import copy_to_host, load, save
from unet_ddp.training.own_holders import Numbers


class Mode(IntEnum):
    EARLY = 0
    LATE = 2


def reread(tmp_path: Path, first: Any, value: Any) -> Any:
    """Return the attribute of a new part, which begins with `first`, after a checkpoint of one that has `value`."""
    part, new = SimpleNamespace(n=first), SimpleNamespace(n=first)
    numbers, of_new = Numbers({"part": part}), Numbers({"part": new})
    part.n = value
    save(tmp_path / "x.pt", copy_to_host({"numbers": numbers.state_dict()}))
    of_new.load_state_dict(load(tmp_path / "x.pt")["numbers"])
    return new.n


@pytest.mark.parametrize("first", [0, 0.0, False, None, 12345])
@pytest.mark.parametrize(
    "value",
    [
        *(2**53 + 1, 2**64 - 1, -(2**63) - 1, 10**400, -(3**2000), 7**3000),
        *(3, 2**40, True, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan),
    ],
)
def test_a_number_is_itself_after_a_checkpoint(tmp_path: Path, first: Any, value: Any) -> None:
    found = reread(tmp_path, first, value)
    assert found == value or (math.isnan(found) and math.isnan(value))
    if value != first:
        assert type(found) is type(value)


def test_numbers_of_other_kinds_are_plain_in_a_file(tmp_path: Path) -> None:
    assert reread(tmp_path, Mode.EARLY, Mode.LATE) == Mode.LATE
    assert reread(tmp_path, Mode.LATE, Mode.LATE) is Mode.LATE  # unchanged, and so the part's own
    assert reread(tmp_path, 0.0, np.float64(0.1)) == 0.1


@pytest.mark.parametrize("odd", ["0xgg", "12", None, [1]])
def test_what_is_no_number_in_a_checkpoint_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: object
) -> None:
    make_set(tmp_path, 4)
    monkeypatch.chdir(tmp_path)
    quick = ["--workers", "0", "--device", "cpu", "--precision", "float32"]
    words = [*data_flags(tmp_path), *quick, "--width", "2", "--epochs", "1", "--batch-size", "1"]
    assert call_train([*words, "--stop-after", "1"], str(tmp_path))[0] == 0
    last = tmp_path / "checkpoints" / "last.pt"
    save(last, {**load(last), "numbers": {"model::calls": odd}})
    status, _, err = call_train(["--resume", *quick], str(tmp_path))
    assert status == 2 and "numbers: 'model::calls': " in err and "expected a number" in err, err
