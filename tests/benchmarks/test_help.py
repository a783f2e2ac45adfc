"""Every benchmark says what it is, with the extras that the tests have."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.ranks import ROOT

PROGRAMS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("[!_]*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    and path.stem not in ("plain", "victim")  # which others start
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_benchmark_has_its_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert end.value.code == 0
    assert "usage: " in capsys.readouterr().out
