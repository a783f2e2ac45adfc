"""Text files with wrong types, of other formats and encodings: an answer in the words of a user."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.search.documents import (
    find_faults,
    list_changes,
    list_documents,
    make_home,
    other_files,
)

_EVERY = 25  # change is tried in the fast lane
DOCUMENTS = list_documents()


def search(name: str, capsys: pytest.CaptureFixture[str], every: int) -> int:
    """Return how many changes of a document were read, one of `every` of them."""
    make_home()
    changes = list_changes(DOCUMENTS[name], other_files(DOCUMENTS))

    def said() -> str:
        captured = capsys.readouterr()
        return captured.out + captured.err

    start = sorted(DOCUMENTS).index(name) % every
    count, faults = find_faults(DOCUMENTS[name], islice(changes, start, None, every), said)
    assert not faults, "\n".join([f"{len(faults)} of {count}", *faults[:20]])
    return count


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_word_of_python(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert search(name, capsys, _EVERY) >= 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.release] * (k % 8 > 0))
        for k, name in enumerate(DOCUMENTS)
    ],
)
def test_no_word_of_python_at_any_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert search(name, capsys, 1) > 30
