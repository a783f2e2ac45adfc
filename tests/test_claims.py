"""docs/claims.md: each claim stands in README, and what checks it exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from benchmarks.pictures import TRAIN
from tests.checks.catalogue import CASES
from tests.test_docs import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = [
    (claim, checks)
    for claim, checks in re.findall(
        r"^\| (.+) \| (.+) \|$", (ROOT / "docs/claims.md").read_text(encoding="utf-8"), re.M
    )
    if claim != "claim"
]
BY_HAND = {"time", "du -sh", "--deterministic"}


def read_plain(text: str) -> str:
    """The text without links, and on one line; a table's cells follow each other."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(text.replace(" | ", " ").replace("`", "").split())


def list_tests(file: str) -> Iterator[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    yield from (node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def exists(check: str) -> bool:
    """Whether a check is there: a test, a command of benchmarks, a file, or one that a person types."""
    file, _, name = check.partition("::")
    if name:
        return name.startswith("test_") and name in list_tests(file)
    if check.startswith("python -m "):
        return find_spec(check.split()[2]) is not None
    return check in BY_HAND or (ROOT / check).exists()


@pytest.mark.parametrize(("claim", "checks"), ROWS)
def test_a_claim_stands_in_readme_and_is_checked(claim: str, checks: str) -> None:
    assert read_plain(claim) in read_plain(README)
    named = re.findall(r"`([^`]+)`", checks)
    assert named or "](" in checks  # pages are checked by the test of links
    assert [check for check in named if not exists(check)] == []


def test_a_check_that_is_gone_is_noticed() -> None:
    assert exists("tests/test_claims.py::test_a_check_that_is_gone_is_noticed") and ROWS
    assert not exists("tests/test_claims.py::test_nothing") and not exists("nowhere.py")
    assert exists("python -m benchmarks.chaos") and not exists("python -m benchmarks.nothing")


def test_the_catalogue_has_a_hundred_cases() -> None:
    assert len(CASES) >= 100


def test_the_pictures_have_the_network_of_the_quick_start() -> None:
    assert f"python train.py {' '.join(TRAIN)}\n" in README
