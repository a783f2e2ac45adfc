"""The documents' links lead somewhere, and the site's navigation has each page."""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.words import read_sentences
from tests.test_docs import PAGES, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
MOST_PAGES, MOST_WORDS = 32, 40_000  # of the users' menu
IN_ROOT = ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]


def read_anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)", text, flags=re.M)
    return {re.sub(r"[^\w\s-]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, "docs/tutorials/notebook.py", *IN_ROOT])
def test_links_between_documents_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if "://" not in link:
            target = (ROOT / page).parent / name if name else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in read_anchors(target), link


def walk(entries: list[dict[str, Any]]) -> Iterator[str]:
    """The pages of a navigation."""
    for entry in entries:
        for page in entry.values():
            yield from [page] if isinstance(page, str) else walk(page)


def read_page(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def read_menu() -> list[str]:
    """The pages of the users' menu."""
    return [*walk(tomllib.loads(read_page("zensical.toml"))["project"]["nav"])]


def list_links(text: str) -> Counter[str]:
    return Counter(re.findall(r"\]\((\w[\w/-]*\.md)\)", text))


def test_each_page_is_in_the_menu_and_on_the_home_page_once() -> None:
    """But for those of development, which neither the menu nor the search of users has."""
    pages = Counter(name.removeprefix("docs/") for name in PAGES if name != "README.md")
    logs = Counter(page for page in pages if read_page(page).startswith(UNSEARCHED))
    assert Counter(read_menu()) + logs == pages
    assert {page for page in pages if page.endswith("-log.md")} < {*logs}
    home = read_page("index.md").partition("\n## Start\n")[2]
    linked = list_links(home) + Counter(["index.md"])
    assert linked == Counter(read_menu()) + Counter(["development.md"])
    lists = read_page("development.md").partition("\n## The code\n")[2]
    assert list_links(lists) + Counter(["development.md"]) == logs


def test_the_menu_is_short() -> None:
    menu = read_menu()
    assert len(menu) <= MOST_PAGES
    assert sum(len(read_page(page).split()) for page in menu) <= MOST_WORDS


@pytest.mark.parametrize("page", read_menu())
def test_a_page_opens_with_what_to_type(page: str) -> None:
    first = read_page(page).splitlines()[:12]
    assert any(re.match(r"```(bash|console|python)|    \S", line) for line in first)


@pytest.mark.parametrize("page", read_menu())
def test_sentences_of_a_page_for_users_are_short(page: str) -> None:
    lengths = [each.length for each in read_sentences(ROOT / "docs" / page)]
    assert statistics.median(lengths) <= 14
