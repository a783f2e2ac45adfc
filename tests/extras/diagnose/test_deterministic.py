"""--deterministic: torch's own algorithms for a run, and a line where it has none."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

from unet_ddp.distributed.device import cudnn_autotuning
from unet_ddp.extras.diagnose.deterministic import deterministic

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def put() -> None:
    """An operation for which torch has no deterministic implementation, on any device."""
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def test_an_operation_without_an_implementation_is_logged_once() -> None:
    lines: list[str] = []
    put()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deterministic(lines.append):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            put()
            put()
    assert len(lines) == 1 and "put_" in lines[0]
    assert lines[0].startswith("--deterministic: ")
    assert lines[0].endswith(" has no deterministic implementation here")
    assert caught == []


@pytest.mark.parametrize("before", [None, ":16:8"])
@pytest.mark.parametrize(("enabled", "warn_only", "benchmark"), [(False, False, True), (True, True, False)])  # fmt: skip
def test_all_is_as_before_after_it(
    monkeypatch: pytest.MonkeyPatch,
    before: str | None,
    enabled: bool,
    warn_only: bool,
    benchmark: bool,
) -> None:
    """Other warnings stay warnings, which are errors in these tests."""
    monkeypatch.setenv(CUBLAS, "") if before is None else monkeypatch.setenv(CUBLAS, before)
    if before is None:
        monkeypatch.delenv(CUBLAS)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    try:
        with (
            pytest.raises(UserWarning, match="something else"),
            deterministic([].append),
        ):
            assert os.environ[CUBLAS] == (before or ":4096:8")
            assert torch.backends.cudnn.benchmark is False
            warnings.warn("something else", UserWarning, stacklevel=1)
        assert torch.are_deterministic_algorithms_enabled() is enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
        assert torch.backends.cudnn.benchmark is benchmark
        assert os.environ.get(CUBLAS) == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_convolutions_are_tried_in_training_alone_and_not_in_a_deterministic_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
        with cudnn_autotuning():
            assert torch.backends.cudnn.benchmark is True
        assert torch.backends.cudnn.benchmark is before
        with deterministic([].append), cudnn_autotuning():
            assert torch.backends.cudnn.benchmark is False
