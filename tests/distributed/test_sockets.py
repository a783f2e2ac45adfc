"""The temporary folder: where it is, and whether multiprocessing's sockets can be there."""

from __future__ import annotations

import ast
import multiprocessing.util
import tempfile
from pathlib import Path

import pytest

from tests.ranks import ROOT
from unet_ddp.distributed import sockets
from unet_ddp.distributed.sockets import make_room_for_sockets
from unet_ddp.errors import UserError
from unet_ddp.files import temporary_folder


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders in which multiprocessing has made its own; none at first, and no temporary one is known."""
    found: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(
        multiprocessing.util, "get_temp_dir", lambda: found.append(tempfile.gettempdir())
    )
    return found


def long_folder(tmp_path: Path, letters: int) -> Path:
    folder = tmp_path / ("x" * (letters - len(str(tmp_path)) - 1))
    folder.mkdir()
    assert len(str(folder)) == letters
    return folder


@pytest.mark.parametrize(("letters", "fits"), [(75, True), (76, False), (200, False)])
def test_sockets_are_in_the_temporary_folder_if_its_name_leaves_room(
    monkeypatch: pytest.MonkeyPatch, made: list[str], letters: int, fits: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = long_folder(Path(short), letters)
        monkeypatch.setenv("TMPDIR", str(folder))
        tempfile.tempdir = None
        make_room_for_sockets()
        assert made == ([] if fits else ["/tmp"])
        assert temporary_folder() == folder  # of all other files


def test_no_folder_for_sockets_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = long_folder(Path(short), 90)
        monkeypatch.setenv("TMPDIR", str(folder))
        tempfile.tempdir = None
        monkeypatch.setattr(sockets, "OTHERS", ("/proc",))
        with pytest.raises(UserError, match=f"TMPDIR={folder}: .*too long.*--workers 0"):
            make_room_for_sockets()


@pytest.mark.parametrize("named", [None, "/proc/none"])
def test_no_temporary_folder_is_one_line(
    monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if named:
        monkeypatch.setenv("TMPDIR", named)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(UserError, match=f"writable, not .*{named or '/tmp'}.*set TMPDIR"):
        temporary_folder()


@pytest.mark.source
def test_no_file_of_the_package_asks_for_the_temporary_folder_itself() -> None:
    """Python's error about none is no line for a user."""
    makers = {
        "gettempdir",
        "mkdtemp",
        "mkstemp",
        "TemporaryDirectory",
        "NamedTemporaryFile",
        "TemporaryFile",
    }
    found = []
    for path in (ROOT / "unet_ddp").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            is_placed = any(word.arg == "dir" for word in node.keywords)
            is_own = path.parent.name == "files" and name == "gettempdir"
            if name in makers and not is_placed and not is_own:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
