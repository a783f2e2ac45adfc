"""The fuzzer notices every fault that is planted; a slice of it finds none in the commands."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.fuzz.child import Case, judge, run_cases
from benchmarks.fuzz.mutations import Dice, mutate_bytes, mutate_text, mutate_values, odd_plain
from tests.conftest import SEED
from tests.ranks import Ranks, warm_python


def say(*lines: str, status: int = 0) -> None:
    print("\n".join(lines), file=sys.stderr)
    sys.exit(status)


def fail(argv: list[str]) -> None:
    raise KeyError(argv[0])


def hang(argv: list[str]) -> None:
    signal.pause()


def crash(argv: list[str]) -> None:
    os.abort()


def fill(argv: list[str]) -> None:
    bytearray(2**31)


PLANTED = {  # by their verdicts
    "as valid": Case(lambda argv: say("epoch 1"), []),
    "one line": Case(lambda argv: say("model: a.pt", "error: a.pt: no weights", status=2), []),
    "TRACEBACK": Case(fail, ["scale"]),
    "HANG": Case(hang, []),
    "MEMORY": Case(fill, []),
    "SILENT": Case(lambda argv: say("a.png"), [], lambda: "std 0.0"),
    "UNCLEAR": Case(crash, []),
}


def run_planted(folder: str) -> list[tuple[str, str, str]]:
    builds = [(name, lambda _, case=case: case) for name, case in PLANTED.items()]
    outcomes = run_cases(builds, Path(folder), limit=1.5)
    return [(name, outcome.verdict, outcome.line) for name, outcome in outcomes]


@pytest.mark.thorough
def test_each_planted_fault_is_noticed(ranks: Ranks, tmp_path: Path) -> None:
    (found,) = ranks.run(1, run_planted, str(tmp_path))
    assert {name: verdict for name, verdict, _ in found} == {name: name for name in PLANTED}
    lines = {name: line for name, _, line in found}
    assert lines["one line"] == "error: a.pt: no weights"
    assert lines["TRACEBACK"] == "KeyError: 'scale'"
    assert lines["SILENT"] == "silent: std 0.0"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "lines", "verdict"),
    [
        (2, ["error: a", "error: b"], "UNCLEAR"),
        (2, ["error: a", "error: b", "unfit to train: 2 problems"], "one line"),
        (2, ["usage"], "UNCLEAR"),
        (0, ["error: a"], "UNCLEAR"),
        (-11, ["error: a"], "UNCLEAR"),
        (1, ["error: rank 0 of 1: the machine is out of memory (MemoryError)"], "MEMORY"),
        (0, ["Traceback (most recent call last):", "warning"], "TRACEBACK"),
    ],
)
def test_a_verdict_asks_for_one_clear_line(status: int, lines: list[str], verdict: str) -> None:
    assert judge(status, lines, 0) == verdict
    assert judge(status, lines, 2**30 + 1) == "MEMORY"


def test_mutations_follow_from_their_seed() -> None:
    def mutated(seed: str) -> tuple[bytes, bytes, str]:
        dice = Dice(seed)
        values = mutate_values({"a": [1, 2.5, "x"], "b": {"c": None}}, dice, odd_plain)
        return mutate_bytes(bytes(500), dice), mutate_text("a,b\n1,2\n", dice), repr(values)[:500]

    seeds = [f"{SEED} {n}" for n in range(20)]
    assert list(map(mutated, seeds)) == list(map(mutated, seeds))
    assert len(set(map(mutated, seeds))) == 20


def test_calm_dice_change_nothing() -> None:
    dice = Dice(SEED)
    dice.is_calm = True
    assert mutate_bytes(b"abc", dice) == b"abc"
    assert mutate_text("a: 1\n", dice) == b"a: 1\n"
    assert mutate_values({"a": [1]}, dice) == {"a": [1]}


@pytest.mark.thorough
@pytest.mark.processes
def test_a_slice_of_the_fuzzer_finds_no_fault(tmp_path: Path) -> None:
    """One case of each kind, the same each time: what is new is found by benchmarks.fuzz."""
    done = warm_python(tmp_path, "-m", "benchmarks.fuzz", "--cases=1", "--seed=1")
    assert done.returncode == 0, done.stdout + done.stderr
