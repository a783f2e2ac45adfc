"""The command line of evaluate."""

from __future__ import annotations

import pytest

from unet_ddp.commands.evaluate import EvaluateConfig, parse_evaluate
from unet_ddp.errors import UserError


def test_defaults() -> None:
    assert parse_evaluate([]) == EvaluateConfig(
        model=None, images=None, masks=None, output=None, threshold=None, tolerance=None,
        scale=None, overwrite=False, nproc=1, workers=None, device="auto", timeout=600.0,
    )  # fmt: skip


def test_flags() -> None:
    argv = "-m a.pt --images b --masks c -o d --threshold 0.999 --tolerance 0 -s 0.5 --overwrite"
    more = "--nproc 2 --workers 0 --device cpu --timeout 0.1"
    assert parse_evaluate([*argv.split(), *more.split()]) == EvaluateConfig(
        "a.pt", "b", "c", "d", 0.999, 0.0, 0.5, True, 2, 0, "cpu", 0.1
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--threshold 0", "--threshold 0.0: must be above 0 and below 1"),
        ("--threshold 1", "--threshold 1.0: must be above 0 and below 1"),
        ("--tolerance -0.1", "--tolerance -0.1: must be 0 or more"),
        ("--nproc 0", "--nproc 0: must be 1 or more"),
        ("--workers -1", "--workers -1: must be 0 or more"),
        ("--timeout 0", "--timeout 0.0: must be above 0"),
        ("--images a", "--images and --masks: use both or neither"),
        ("--masks a", "--images and --masks: use both or neither"),
    ],
)
def test_limits(argv: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_evaluate(argv.split())
    assert str(caught.value) == message
