"""Tests speak to public names: a private one may move, and what it does alone matters to no user."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFINED = re.compile(
    r"(?:\b(?:def|class) |^\s*(?:self\.)?)(_[a-z]\w*)(?:\(|:$|(?:: [^=\n]+)? = )", re.M | re.I
)


def find_private(names: set[str], test: str) -> Iterator[str]:
    """Yield `line: name` where a test imports one of the names, reads it of an object, or has it in a string."""
    if names.isdisjoint(re.findall(r"\w+", test)):
        return
    for node in ast.walk(ast.parse(test)):
        found: list[str] = []
        if isinstance(node, ast.ImportFrom):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self":
            found = [node.attr]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [node.value.rpartition(".")[2]]
        yield from (f"{node.lineno}: {name}" for name in found if name in names)  # type: ignore[attr-defined]


def test_no_test_uses_a_private_name_of_the_package() -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "unet_ddp").rglob("*.py"))
    names = {name for source in sources for name in DEFINED.findall(source)}
    tests = {path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name}
    assert {
        str(path.relative_to(ROOT)): found
        for path in tests
        if (found := [*find_private(names, path.read_text(encoding="utf-8"))])
    } == {}
