"""--deterministic: torch's own algorithms for the length of a run, and a line where it has none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.ranks import Ranks, call_main
from tests.test_resume import assert_same_state
from unet_ddp.training.determinism import deterministic

FLAGS = ["--width", "2", "--epochs", "1", "--batch-size", "2", "--workers", "0", "--ema", "0.9"]


def train_watched(words: list[str], folder: str) -> tuple[tuple[int, str, str], list[bool], bool]:
    """train.py; whether torch was deterministic in each step and after it. Each step has an
    operation for which torch has no deterministic implementation, on any device."""
    from unet_ddp.training import step as engine

    kept, seen = engine.gradients, []

    def watched(*args: Any, **how: Any) -> Any:
        seen.append(torch.are_deterministic_algorithms_enabled())
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
        return kept(*args, **how)

    engine.gradients = watched
    try:
        done = call_main("train", words, folder)
    finally:
        engine.gradients = kept
    return done, seen, torch.are_deterministic_algorithms_enabled()


def test_it_holds_for_the_run_and_tells_where_there_is_none(ranks: Ranks, tmp_path: Path) -> None:
    make_set(tmp_path, 10)
    ends = []
    for name in ("one", "two"):
        words = [*data_flags(tmp_path), *FLAGS, "--deterministic", "--exp-name", name]
        outcomes = ranks.run(2, train_watched, words, str(tmp_path))
        for (status, out, err), seen, after in outcomes:
            assert (status, err) == (0, "")
            assert seen == [True] * 2 and not after
            assert "Warning" not in out
        said = "".join(out for (_, out, _), _, _ in outcomes)
        line = "--deterministic: put_ has no deterministic implementation here"
        assert said.count("deterministic") == said.count(f"{line}\n") * 2 == 2  # once in all
        ends.append(tmp_path / "checkpoints" / name)
    one, two = (torch.load(end / "last.pt", weights_only=True) for end in ends)
    assert_same_state(one, two)
    words = [*data_flags(tmp_path), *FLAGS, "--exp-name", "without"]
    ((status, out, _), seen, _) = ranks.run(1, train_watched, words, str(tmp_path))[0]
    assert status == 0 and not any(seen) and "deterministic" not in out


def test_all_is_as_before_after_it() -> None:
    """Also other warnings are: they stay warnings, which are errors in these tests."""
    before = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    told: list[str] = []
    with pytest.raises(UserWarning, match="something else"), deterministic(told.append):
        assert torch.are_deterministic_algorithms_enabled()
        import warnings

        warnings.warn("something else", UserWarning, stacklevel=1)
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == before
    assert told == []
