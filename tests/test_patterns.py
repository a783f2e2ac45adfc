"""Every regular expression of the package takes a moment on any text, however long a user's may be."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import unet_ddp
from unet_ddp.errors import UserError, hide_secrets

PACKAGE = Path(unet_ddp.__file__).parent
LENGTH, SECONDS = (
    1 << 12,
    1.0,
)  # a cell of a table; one that doubles in time with each letter is far beyond
TWICE = {"compile", "match", "fullmatch", "search", "sub", "findall", "split", "finditer"}
PIECES = [
    "a", "a.", "1", "1.", "1e", "0x", "(1)", "//a:", "(//a:", "a:/", "s3://", "ab/", "a-", "a,", "roi_", "copy ",
    " copy 1", "<a ", " ", "-", "_", "/", "%", "\\", "'", '"', "[", "#", "=", "+", "@", "|", "\n", "\t", "é", "a?b=",
]  # fmt: skip


def find_patterns() -> Iterator[tuple[str, re.Pattern[str], list[str]]]:
    """Yield each literal pattern, where it stands, and the methods by which it is used."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            is_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            literal = node.args[0] if is_re and node.func.attr in TWICE and node.args else None
            if not isinstance(literal, ast.Constant) or not isinstance(literal.value, str):
                continue
            used = [node.func.attr]
            if used == ["compile"]:
                used = re.findall(r"\b_?[A-Z_]+\.(match|fullmatch|search|sub|findall)\(", text)
            flags = re.IGNORECASE if "IGNORECASE" in ast.unparse(node) else 0
            where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
            yield where, re.compile(literal.value, flags), sorted({*used} or {"fullmatch"})


@contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"{what} takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.source
def test_no_pattern_takes_long() -> None:
    patterns = list(find_patterns())
    assert len(patterns) > 60
    for where, pattern, used in patterns:
        for piece in PIECES:
            for tail in ("", "\0"):
                text = (piece * LENGTH)[:LENGTH] + tail
                for method in used:
                    with at_most(SECONDS, f"{where} {pattern.pattern!r}.{method} of {piece!r}"):
                        if method == "sub":
                            pattern.sub("", text)
                        else:
                            getattr(pattern, method)(text)


@pytest.mark.parametrize("piece", PIECES)
def test_a_message_of_any_length_is_made_in_a_moment(piece: str) -> None:
    with at_most(5, piece):
        assert len(str(UserError(piece * (10**6 // len(piece))))) < 20_000


def test_long_addresses_have_no_secrets_in_a_message() -> None:
    said = hide_secrets(f"https://me:word@host/{'a' * 3000}?sig=x is missing")
    assert said == f"https://host/{'a' * 3000}?sig=*** is missing"
