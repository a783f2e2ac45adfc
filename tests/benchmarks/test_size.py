"""The limits on the size of the code are checked as they are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import size

FUNCTION = "def {}():\n" + "    x = 1\n" * 39  # 40 lines


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout on the limits: functions of 40 lines, and a file of 300."""
    files = {
        "train.py": '"""Train."""  # no code\nworld.is_main\n',
        "predict.py": FUNCTION.format("predict"),
        "tests/test_long.py": "x = 1\n" * 999,
        "unet_ddp/__init__.py": "",
        "unet_ddp/__main__.py": "",
        "unet_ddp/errors.py": "x = 1\n" * 300,
        "unet_ddp/extras/own.py": "import unet_ddp.extras.other\n",
        "unet_ddp/commands/own.py": "import unet_ddp.extras.own\n",
        "unet_ddp/files.py": "from unet_ddp.extras import own\nfrom unet_ddp import errors\n",
        "unet_ddp/distributed/world.py": "if self.is_main and world.is_main:\n    pass\n",
        "unet_ddp/__pycache__/a.txt": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_is_on_the_limits_keeps_them(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size.main([str(checkout), "--check"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for row in (
        "| unet_ddp: lines, files | 306, 7 |",
        "| tests: lines, files | 999, 1 |",
        "| train.py: lines, files | 2, 1 |",
        "| lines of tests, a line of the package | 3.26 |",
        # 3, 1 + 39 * 3, 300 * 3, 7, 3 and 1, on 1, 40, 300, 2, 3 and 1 lines
        "| statements and expressions, a line | 1,032, 2.97 |",
        "| of them in the core, in extras | 1,031, 1 |",
        "| imports from below commands/ to extras | 1 |",
        "| expressions that hide a condition | 0 |",
        "| longest file | unet_ddp/errors.py, 300 lines |",
        "| longest function | predict.py:1 predict, 40 lines |",
        "| files over 300 lines | 0 |",
        "| functions over 40 lines | 0 |",
        "| entries of unet_ddp (5) | commands distributed errors.py extras files.py |",
        "| reads of is_main outside distributed/ | 1 |",
    ):
        assert row in out


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("train.py", "class A:\n    def a(self):\n" + "        x = 1\n" * 40,
         "train.py:2 a has 41 lines; at most 40"),
        ("unet_ddp/errors.py", "\n" * 301, "unet_ddp/errors.py has 301 lines; at most 300"),
        ("train.py", "x = f'{1 if y else 2}'\n",
         "train.py:1 has a conditional expression within an f-string"),
        ("train.py", "\nx = (1 if a else 2) if b else 3\n",
         "train.py:2 has a conditional expression within another"),
        ("train.py", "x = 's' * (n != 1)\n", "train.py:1 has arithmetic on a condition"),
        ("train.py", "x = [[b for b in a if b] for a in y if a]\n",
         "train.py:1 has a filtered comprehension within another"),
    ],
)  # fmt: skip
def test_one_line_more_is_an_error(
    checkout: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, error: str
) -> None:
    (checkout / name).write_text(text)
    assert size.main([str(checkout), "--check"]) == 1
    assert capsys.readouterr().err == f"error: {error}\n"
    assert size.main([str(checkout)]) == 0


def test_what_hides_no_condition_is_allowed(checkout: Path) -> None:
    text = "x = [[b for b in a] for a in y if a]\nz = 1 if x else 2\nw = (a == 1) * w\n"
    (checkout / "train.py").write_text(text)
    assert size.main([str(checkout), "--check"]) == 0


def test_the_packages_entries_have_a_limit(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size, "ENTRIES", 2)
    assert size.main([str(checkout), "--check"]) == 1
    assert capsys.readouterr().err == "error: unet_ddp has 5 entries; at most 2\n"
