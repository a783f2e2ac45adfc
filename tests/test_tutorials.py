"""The tutorials, the how-to pages and several-hosts.md, typed from top to bottom in a fresh folder.

Of a page, a `bash` block is typed, and a `python` block is saved under its title. A `text` block shows what the
block before it printed: these lines, in this order, among others. `…` stands for anything. A block that printed
`error:` fails, all others succeed. Blocks of other languages are not run: `console`, for what this machine may not
have (another installation, a cluster, a GPU) or a person does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ranks import LIMIT, ROOT

# What the other pages type is tested elsewhere, too.
KEPT = ("first-network",)
PAGES = [
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    ROOT / "docs/several-hosts.md",
]
TYPED = [
    pytest.param(
        page,
        id=page.stem,
        marks=[pytest.mark.release] * (page.stem not in KEPT),
    )
    for page in PAGES
]


class Block(NamedTuple):
    language: str
    title: str
    text: str


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page that are run or compared."""
    found = re.findall(
        r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$',
        page.read_text(encoding="utf-8"),
        flags=re.M | re.S,
    )
    return [Block(*each) for each in found if each[0] in ("bash", "python", "text")]


def type_block(command: str, folder: Path) -> tuple[int, str]:
    """Return the exit status of lines in a shell, and all that they print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {k: v for k, v in os.environ.items() if k != "ONEDNN_MAX_CPU_ISA"}  # the reader's
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**environment, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=5 * LIMIT,  # a dozen epochs, also on a busy machine
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout


def find_missing(expected: str, printed: str) -> str | None:
    """Return the first expected line that is not among the printed ones, in their order."""
    lines = iter(printed.splitlines())
    for line in expected.splitlines():
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if not any(pattern.fullmatch(each) for each in lines):
            return line
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_shown_text_follows_what_printed_it(page: Path) -> None:
    blocks = read_blocks(page)
    assert all(block.title for block in blocks if block.language == "python")
    for before, block in zip([None, *blocks], blocks, strict=False):
        assert block.language != "text" or (before and before.language == "bash"), block.text


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("page", TYPED)
def test_a_reader_types_the_page(page: Path, tmp_path: Path) -> None:
    for name in ("train.py", "predict.py"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("data", "checkpoints"):  # as in a clone
        (tmp_path / name).mkdir()
        shutil.copy(ROOT / name / "README.md", tmp_path / name)
    blocks = read_blocks(page)
    for block, after in zip(blocks, [*blocks[1:], Block("", "", "")], strict=False):
        if block.language == "python":
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
        if block.language == "bash":
            shown = after.text if after.language == "text" else ""
            status, printed = type_block(block.text, tmp_path)
            fails = re.search(r"^error: ", shown, flags=re.M) is not None
            assert (status != 0) == fails, f"{block.text}\n{printed}"
            missing = find_missing(shown, printed)
            assert missing is None, f"{block.text}\nnot printed: {missing}\n{printed}"
