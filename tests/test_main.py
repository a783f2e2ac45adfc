"""``python -m unet_ddp``: the table of commands and how their errors end."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import unet_ddp
from tests.conftest import install_package
from unet_ddp.__main__ import COMMANDS, main
from unet_ddp.errors import RunError, UserError

NAMES = [name for names in COMMANDS.values() for name in names]


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_overview(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^  ([\w-]+) ", text, flags=re.M) == NAMES
    assert re.findall(r"^(\w.*):$", text, flags=re.M) == list(COMMANDS)
    assert "  train --images DIR --masks DIR    train a U-Net" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"unet_ddp {unet_ddp.__version__}\n"


def test_torch_s_threads_leave_their_core_to_other_programs() -> None:
    """libgomp reads its variables when it is loaded, with torch."""
    code = (
        "import os, sys; from unet_ddp.__main__ import run; early = 'torch' not in sys.modules; "
        "run('unknown'); print(early, os.environ['GOMP_SPINCOUNT'])"
    )
    found = []
    for chosen in (None, "7"):
        environment = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT"}
        environment |= {} if chosen is None else {"GOMP_SPINCOUNT": chosen}
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(ran.stdout.splitlines()[-1])
    assert found == ["True 4000", "True 7"]


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docter"]) == 2
    assert capsys.readouterr().err == (
        "error: docter: unknown command; use one of train, predict, doctor, import, pack, demo-data, evaluate, report, compare, tune, learning-curve, export, demo, serve\n"
    )


def test_a_command_of_one_s_own_is_named_by_its_path_or_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is imported when it is named, and its mistakes end as ours do."""
    (tmp_path / "my_commands.py").write_text(
        "from unet_ddp.errors import UserError\n"
        "def count(argv):\n"
        "    if not argv:\n"
        "        raise UserError('count: name a file')\n"
        "    print(len(argv))\n"
        "    return 3\n"
    )
    install_package(tmp_path, "[unet_ddp.commands]\ncount = my_commands:count\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_commands", raising=False)
    assert main([]) == 0 and "my_commands" not in sys.modules
    assert "Of installed packages:\n  count ...\n" in capsys.readouterr().out
    for name in ("count", "my_commands:count"):
        assert (main([name, "a", "b"]), capsys.readouterr().out) == (3, "2\n")
        assert (main([name]), capsys.readouterr().err) == (2, "error: count: name a file\n")
    assert main(["my_commands:other"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: my_commands:other: can't be imported (AttributeError: ")


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_names_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: python -m unet_ddp {name} [-h]")
    assert "python train.py" not in text and "python predict.py" not in text  # in a clone alone
    assert "=4 train.py" not in text
    assert name != "train" or "unet-ddp train --nproc 4 --images imgs --masks masks\n" in text


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (None, 7, ""),
        (UserError("bad\nfile"), 2, "error: bad\\nfile\n"),
        (RunError("disk full"), 1, "error: disk full\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            OSError(errno.EACCES, "Permission denied", "a/b.pt"),
            2,
            "error: a/b.pt: Permission denied\n",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "a"),
            2,
            "error: a: File name too long\n",
        ),
    ],
)
def test_a_command_s_end(
    error: BaseException | None,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command(argv: list[str]) -> int:
        assert argv == ["-o", "a"]
        if error is not None:
            raise error
        return 7

    name = "unet_ddp.extras.demo_set.command"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(main=command))  # type: ignore[arg-type]
    assert main(["demo-data", "-o", "a"]) == status
    assert capsys.readouterr().err == said


def test_a_clone_that_is_not_installed_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "unet_ddp.extras.report.compare", raising=False)
    assert main(["compare"]) == 2
    assert capsys.readouterr().err == (
        f"error: tyro is not installed in {sys.prefix}; activate the environment that has unet_ddp, or type "
        "python -m pip install -e .\n"
    )


def test_the_command_line_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unet_ddp", "nothing"])
    assert main() == 2
    assert "nothing: unknown command" in capsys.readouterr().err
