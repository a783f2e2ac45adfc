"""English of the documentation, help and docstrings: lengths of sentences, and private words.

    python -m benchmarks.words [--list] [--check]

Sentences have at most 35 words, and on a page of the users' menu a median of 14 or less (tests/test_site.py). Code,
tables and headings are left out.
`--list` prints each sentence that breaks a rule; `--check` does so too, and fails if there is one.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing import print_table

ROOT = Path(__file__).parents[1]

IN_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
LONGEST = 35  # words
PRIVATE = (
    r"a line says so", r"those of", r"of (?:its|their) own", r"(?:is|are) told", r"(?:begun )?anew", r"undisturbed",
    r"no choice saw", r"is no place", r"when its turn comes", r"(?:is|are) not believed", r"(?:is|are) spoken to",
    r"flatters?", r"by half", r"for ever",
)  # fmt: skip
_CLAUSE = r"^(?:What|Who|Whoever|Whatever) [^,?]*$"  # a subject that is a relative clause


class Sentence(NamedTuple):
    """A sentence, and the file in which it stands."""

    place: str
    text: str

    @property
    def length(self) -> int:
        """Number of words; code between backquotes is one."""
        return len(re.findall(r"\w[^\s]*", re.sub(r"`[^`]*`", "code", self.text)))

    @property
    def faults(self) -> list[str]:
        """The rules that it breaks, in words."""
        found = [f"{self.length} words"] if self.length > LONGEST else []
        plain = re.sub(r"`[^`]*`", "code", self.text)
        found += [
            match[0] for each in PRIVATE for match in re.finditer(rf"\b{each}\b", plain, re.I)
        ]
        return found + ["a clause as subject"] * bool(re.match(_CLAUSE, plain))


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, on one line each."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return [each for each in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z*`\"(\[])", text) if each]


def read_markdown(text: str) -> Iterator[str]:
    """Yield the paragraphs and items of a page without code, tables and headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", "", text, flags=re.S)
    for block in re.split(r"\n\s*\n", text):
        if not re.match(r" {4}|\||#", block):
            yield from re.split(r"^\s*(?:[-*]|\d+\.) ", block, flags=re.M)


def read_docstrings(text: str) -> Iterator[str]:
    """Yield the paragraphs of a module's docstrings; those under settings are the lines of --help."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                whole = inspect.cleandoc(value.value)
                whole = re.sub(r"^(Args|Raises|Returns):$", "", whole, flags=re.M)
                whole = re.sub(r"^    \w+(?: or \w+)*: ", "\n\n", whole, flags=re.M)
                yield from read_markdown(whole)


def read_all() -> Iterator[Sentence]:
    """Yield the sentences of the pages in the root and in docs, and of the package's docstrings."""
    pages = [*(ROOT / name for name in IN_ROOT), *sorted((ROOT / "docs").rglob("*.md"))]
    for path in [*pages, *sorted((ROOT / "unet_ddp").rglob("*.py"))]:
        yield from read_sentences(path)


def read_sentences(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a page, or of a module's docstrings."""
    read = read_markdown if path.suffix == ".md" else read_docstrings
    for paragraph in read(path.read_text(encoding="utf-8")):
        for text in split_sentences(paragraph):
            yield Sentence(str(path.relative_to(ROOT)), text)


def summarize(sentences: Iterable[Sentence]) -> Iterator[list[str]]:
    """Yield a row for each page, and one for the docstrings: sentences, median, longest, faults."""
    groups: dict[str, list[Sentence]] = {}
    for each in sentences:
        place = each.place if each.place.endswith(".md") else "docstrings"
        groups.setdefault(place, []).append(each)
    for place, found in groups.items():
        lengths = [each.length for each in found]
        faults = sum(bool(each.faults) for each in found)
        median = statistics.median(lengths)
        yield [place, str(len(found)), f"{median:g}", str(max(lengths)), str(faults)]


def main(argv: list[str] | None = None) -> int:
    """Print the table and the sentences that break a rule; return 1 with --check if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the sentences that break a rule")
    parser.add_argument("--check", action="store_true", help="the same, and fail if there is one")
    options = parser.parse_args(argv)
    sentences = [*read_all()]
    print_table(["", "sentences", "median", "longest", "break a rule"], [*summarize(sentences)])
    broken = [each for each in sentences if each.faults]
    if options.list or options.check:
        for each in broken:
            print(f"{each.place}: {', '.join(each.faults)}: {each.text}")
    return int(options.check and bool(broken))


if __name__ == "__main__":
    sys.exit(main())
