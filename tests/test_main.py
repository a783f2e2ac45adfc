"""``python -m unet_ddp``: the table of commands and how their errors end."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from unet_ddp.__main__ import COMMANDS, main
from unet_ddp.errors import RunError, UserError


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_overview(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines] == list(COMMANDS)
    assert lines[0].startswith("python -m unet_ddp train --images DIR --masks DIR     train a")


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docter"]) == 2
    assert capsys.readouterr().err == (
        "error: docter: unknown command; use one of train, predict, doctor, import, pack, evaluate, report, compare, tune, export, demo, demo-data\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_names_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m unet_ddp {name} [-h]")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (None, 7, ""),
        (UserError("bad\nfile"), 2, "error: bad\\nfile\n"),
        (RunError("disk full"), 1, "error: disk full\n"),
        (KeyboardInterrupt(), 130, ""),
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
        assert argv == ["--folder", "a"]
        if error is not None:
            raise error
        return 7

    name = "unet_ddp.extras.demo_set.command"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(main=command))  # type: ignore[arg-type]
    assert main(["demo-data", "--folder", "a"]) == status
    assert capsys.readouterr().err == said


def test_the_command_line_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unet_ddp", "nothing"])
    assert main() == 2
    assert "nothing: unknown command" in capsys.readouterr().err
