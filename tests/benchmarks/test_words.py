"""The ruler of the English."""

from pathlib import Path

import pytest

from benchmarks import words
from benchmarks.words import Sentence, read_docstrings, read_markdown, split_sentences


def test_what_breaks_a_rule_is_found() -> None:
    long = " ".join(["word"] * 36) + "."
    assert Sentence("a", long).faults == ["36 words"]
    assert Sentence("a", long.replace("word word ", "`two words` ")).faults == []
    assert Sentence("a", "It begins anew, and a line says so.").faults == ["a line says so", "anew"]
    assert Sentence("a", "What no run needs is left out.").faults == ["a clause as subject"]
    assert Sentence("a", "What does it cost?").faults == []


def test_sentences_of_a_page_and_of_docstrings() -> None:
    page = "# Title\n\nOne [link](a.md). Two\nlines: `a.b`.\n\n- Item.\n- Other.\n\n    code. Here.\n\n| a. B. |\n"
    found = [text for block in read_markdown(page) for text in split_sentences(block)]
    assert found == ["One link.", "Two lines: `a.b`.", "Item.", "Other."]
    module = '"""Head."""\n\nclass A:\n    x: int = 1\n    """Field. Again."""\n\n    def f(self):\n        """Do it.\n\n        Args:\n            x: a word.\n        """\n'
    texts = [text for block in read_docstrings(module) for text in split_sentences(block)]
    assert texts == ["Head.", "Field.", "Again.", "Do it.", "a word."]


@pytest.mark.parametrize("place", ["SECURITY.md", "docs/a/page.md", "unet_ddp/part/module.py"])
def test_the_check_fails_and_lists_the_sentence_that_breaks_a_rule(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    for name in (*words.IN_ROOT, place):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""It is short."""\n')
    assert words.main(["--check"]) == 0
    assert "It is short" not in capsys.readouterr().out
    (tmp_path / place).write_text('"""It begins anew."""\n')
    assert words.main([]) == 0
    assert words.main(["--check"]) == 1
    assert f"{place}: anew: " in capsys.readouterr().out
