"""The messages that the documentation quotes are messages of the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.checks.catalogue import PAGE
from tests.test_docs import PAGES, ROOT

SOURCE = ROOT / "unet_ddp"
PATHS = (
    "calibration|card|checkpoints|images|list|like|load|masks|model|output|palette|resume|reader"
)
TYPED = re.compile(rf"-m unet_ddp [a-z-]+ |(train|predict)\.py |ogr2ogr [\w.]+ |(?<!^)--({PATHS}) ")
"""What is followed by a path, in a command or a flag to type; at its start, a message repeats what was typed."""
HOLE = "\0"  # a name or a number
FEWEST = 12  # characters that are no hole: shorter ones would be found anywhere


@cache
def read_messages() -> tuple[str, ...]:
    """The texts in the package's source, with a hole for each value."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "unet_ddp").rglob("*.py")]
    texts = {text for source in sources for text in walk(ast.parse(source))}
    return tuple(sorted(re.sub(r"\{\w*\}", HOLE, text) for text in texts))


def walk(node: ast.AST) -> Iterator[str]:
    """The texts below a node of the syntax tree; an f-string is one."""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node) if not isinstance(node, ast.JoinedStr) else ():
        yield from walk(child)


def is_said(quoted: str) -> bool:
    """Whether the text, in which `…` stands for anything, is a part of one message."""
    parts = quoted.split("…")
    pattern = re.compile(".*".join(map(re.escape, parts)), re.S)
    return len("".join(parts)) >= FEWEST and any(map(pattern.search, read_messages()))


def is_whole(line: str) -> bool:
    """Whether a whole message looks like this line, with any values in its holes."""
    for message in read_messages():
        parts = message.split(HOLE)
        if len("".join(parts)) >= FEWEST and re.fullmatch(".*".join(map(re.escape, parts)), line):
            return True
    return False


def read_tables(page: Path) -> Iterator[str]:
    """The code in the first column of the page's tables of messages."""
    for table in re.findall(
        r"^\| message.*\n\|---.*\n((?:\|.*\n)+)", page.read_text("utf-8"), re.M
    ):
        yield from re.findall(r"^\| `([^`]+)` \|", table, re.M)


def test_a_changed_message_is_noticed() -> None:
    assert is_said("contains a run") and not is_said("contains the run")
    assert is_said("no mask for …: looked for …") and not is_said("no mask for …; looked for …")
    line = "no mask for imgs/a.png: looked for masks/a.*; name masks like their images"
    assert is_whole(line) and not is_whole(line.replace("looked", "searched"))


@pytest.mark.parametrize("page", ["docs/when-something-breaks.md", "docs/several-hosts.md"])
def test_the_messages_in_a_table_are_the_program_s(page: str) -> None:
    """The catalogue's messages were provoked by its tests; the others are in the source."""
    provoked = PAGE.read_text(encoding="utf-8").partition("<!-- catalogue -->")[2]
    quoted = [*read_tables(ROOT / page)]
    assert quoted
    assert [each for each in quoted if each not in provoked and not is_said(each)] == []


def test_the_error_lines_on_the_pages_are_the_program_s() -> None:
    """With all of their words, so without those of the catalogue, which are tested there."""
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in PAGES]
    lines = [line for text in texts for line in re.findall(r"^ *error: (.*)$", text, flags=re.M)]
    assert lines
    assert [line for line in lines if not is_whole(line)] == []


def list_typed(source: str) -> list[str]:
    """Values in messages that a user types after a command or a flag of a path, and that no shell may divide."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        said = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                ends = [match.end() for match in TYPED.finditer(said)]
                if ends and ends[-1] == len(said) and not is_quoted(part.value, source):
                    found.append(f"{said}{{{ast.unparse(part.value)}}}")
                said += HOLE
            else:
                said += str(part.value) if isinstance(part, ast.Constant) else ""
    return found


def is_quoted(value: ast.expr, source: str) -> bool:
    """Whether a value is one of shlex, or a name that has been given one."""
    name = re.escape(ast.unparse(value))
    given = re.findall(rf"\b{name}\b[^\n]* \+?= ([^\n]*)", source)
    text = " ".join([ast.unparse(value), *given])
    return re.search(r"\b(quote|join)\(", text) is not None


def test_a_path_in_a_command_to_type_is_quoted() -> None:
    """Issue: of a folder `my card`, the command named two files."""
    assert list_typed('f"use --model {path}"') and not list_typed('f"use --model {quote(path)}"')
    found = {
        f"{path.relative_to(SOURCE)}: {line}"
        for path in SOURCE.rglob("*.py")
        for line in list_typed(path.read_text(encoding="utf-8"))
    }
    assert found == set()
