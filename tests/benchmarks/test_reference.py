"""The reference pages are what the program says of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import unet_ddp
from benchmarks import reference, reference_python
from benchmarks.notebook import make_notebook
from unet_ddp.plugins.built_in import BUILT_IN
from unet_ddp.settings import Excludes, as_flag, pairs_of, settings_of


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.make_pages()


def test_the_pages_are_up_to_date(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        found = (reference.FOLDER / name).read_text(encoding="utf-8")
        assert found == text, "type python -m benchmarks.reference"


def test_a_percent_comment_begins_a_cell() -> None:
    source = "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nimport os\n\nos.getcwd()\n\n# %%\n1\n"
    text, *code = json.loads(make_notebook(source))["cells"]
    assert (text["cell_type"], "".join(text["source"])) == ("markdown", "# Title\n\nText.")
    assert [cell["cell_type"] for cell in code] == ["code", "code"]
    assert ["".join(cell["source"]) for cell in code] == ["import os\n\nos.getcwd()", "1"]


def test_each_flag_of_each_command_is_on_the_page(pages: dict[str, str]) -> None:
    assert reference.COMMANDS.keys() == BUILT_IN["commands"].keys()
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", pages["reference/flags.md"], re.M))
    assert [*sections] == [*reference.COMMANDS]
    for name, kind in reference.COMMANDS.items():
        used = {*settings_of(kind)} - getattr(kind, "unused", frozenset())
        shown = {*re.findall(r"--[\w-]+", sections[name])}
        if "It also takes these flags of [predict](#predict)" in sections[name]:
            named = sections[name].partition("flags of [predict](#predict):")[2]
            assert {"--device", "--network"} <= {*re.findall(r"--[\w-]+", named)}
        if "all flags of [train](#train) but these" in sections[name]:
            left = {*re.findall(r"--[\w-]+", sections[name].partition("but these:")[2])}
            shared = {as_flag(each) for each in settings_of(reference.COMMANDS["train"])}
            assert left == shared - {as_flag(each) for each in used}
            shown |= shared - left
        assert shown >= {
            as_flag(each) for each in used if settings_of(kind)[each].flag.startswith("--")
        }
        items = re.findall(r"^- (.*)", sections[name], re.M)
        assert all(re.match(r"\*\*`[^*]+`\*\*.*: \S.*\.$", item) for item in items)


def test_an_item_has_values_default_and_what_excludes_the_flag(pages: dict[str, str]) -> None:
    items = re.findall(r"^- (.*)", pages["reference/flags.md"], re.M)
    for start, end in (
        (
            "**`-s`, `--scale`** `FACTOR`: Resize images to",
            ", in training and prediction. Default: 1.",
        ),
        ("**`-e`, `--epochs`** `N`: Passes over", " Default: 10."),
        ("**`--device`** `auto`, `cpu`, `cuda`: `auto`: a GPU", "Default: auto."),
        ("**`--resume`** `[FILE]`: ", " Not with `--load`."),
        ("**`-o`, `--output`** `DIR`: ", " Required."),
        ("**`--window`** `N`: ", " Limit: 32 or more."),
    ):
        assert any(item.startswith(start) and item.endswith(end) for item in items), start
    assert ("resume", "load") in pairs_of(reference.COMMANDS["train"], Excludes)


def test_names_in_a_text_become_code_and_documents_links() -> None:
    text = "Write last.pt to s3://bucket/a. See docs/data.md, docs/how-to/a-b.md, --val-images, or 'a/*.png'; e.g. 0.5."
    marked = reference.mark_code(text)
    assert marked == (
        "Write `last.pt` to `s3://bucket/a`. See [data.md](../data.md), [a-b.md](../how-to/a-b.md), `--val-images`, or `'a/*.png'`; e.g. 0.5."
    )


def test_each_public_name_is_on_the_page(pages: dict[str, str]) -> None:
    assert {*reference_python.MEMBERS} == {*unet_ddp.__all__}
    for name, members in reference_python.MEMBERS.items():
        section = pages["reference/python.md"].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert "```python\n" in section
        missing = [each for each in members if not re.search(rf"[.`]{each}\b", section)]
        assert [each for each in missing if not each.startswith("__")] == []


def test_a_page_that_differs_is_found_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    assert reference.main(["--check"]) == 1
    assert "flags.md differs; type python -m benchmarks.reference" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    assert reference.main([]) == 0 and reference.main(["--check"]) == 0
    (tmp_path / "reference/python.md").write_text("old")
    assert reference.main(["--check"]) == 1
