"""The page for readers of the code names files and functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "read-the-heart.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py):([\w.]+)`", TEXT)))
FILES = sorted(set(re.findall(r"`([a-z_/]+/[a-z_]+\.py)[:`]", TEXT)))


def find(tree: ast.AST, name: str) -> ast.AST | None:
    """Return the function or class `name`, as Class.method, in a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    found: ast.AST | None = tree
    for word in name.split("."):
        body = getattr(found, "body", [])
        found = next((each for each in body if isinstance(each, kinds) and each.name == word), None)
    return found


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_function_that_is_named_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "unet_ddp" / file).read_text(encoding="utf-8"))
    assert find(tree, name) is not None


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_named_is_there(file: str) -> None:
    assert (ROOT / "unet_ddp" / file).is_file()


def test_the_page_names_what_it_is_about() -> None:
    assert len(NAMED) > 30 and len(FILES) > 15
