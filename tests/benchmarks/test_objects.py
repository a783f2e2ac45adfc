"""The comparison of separations runs to its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.objects import main


@pytest.mark.thorough
@pytest.mark.release
def test_three_ways_to_separate_are_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = ["--folder", str(tmp_path), "--count", "6", "--side", "48", "-v", "34", "--seed", "0"]
    training = ["--width", "2", "--epochs", "1", "-b", "2", "--workers", "0", "--channels", "1"]
    assert main([*drawn, *training]) == 0
    _, _, *rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row.partition(",")[0] for row in rows] == [
        "| with border", "| without", "| without",
    ]  # fmt: skip
    assert len({row.split(" | ")[4] for row in rows}) == 1  # all have the same true objects
