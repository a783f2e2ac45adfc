"""The ruler of the English."""

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
