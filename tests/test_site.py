"""The documents' links lead somewhere, and the site's navigation has each page."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import PAGES, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
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


def test_each_page_is_in_the_navigation_and_in_the_home_page_s_lists_once() -> None:
    """But for logs of development: neither the menu nor the search of users has them."""
    pages = Counter(name.removeprefix("docs/") for name in PAGES if name != "README.md")
    settings = tomllib.loads((ROOT / "docs/zensical.toml").read_text(encoding="utf-8"))
    in_menu = Counter(walk(settings["project"]["nav"]))
    texts = {page: (ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages}
    logs = {page for page, text in texts.items() if text.startswith(UNSEARCHED)}
    assert in_menu + Counter(logs) == pages
    assert {page for page in pages if page.endswith("-log.md")} < logs
    home = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    lists = home.partition("\n## Tutorials\n")[2]
    assert Counter(["index.md", *re.findall(r"\]\((\w[\w/-]*\.md)\)", lists)]) == pages
