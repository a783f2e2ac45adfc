"""The lock of a run's folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unet_ddp.errors import UserError
from unet_ddp.runs.lock import lock_folder, unlock_folder


def test_a_lock_does_not_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"symbolic links; choose a writable folder with --here"):
        lock_folder(tmp_path, "--here")
    assert (tmp_path / "victim").read_text() == "untouched"


@pytest.mark.processes
def test_a_lock_waits_for_the_end_of_another_process(tmp_path: Path) -> None:
    holder = (
        "import fcntl, pathlib, sys; lock = open('.lock', 'w'); fcntl.lockf(lock, fcntl.LOCK_EX);"
    )
    holder += "print(flush=True); sys.stdin.read(); pathlib.Path('end').touch()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-Sc", holder], cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        process.stdin.close()
        lock_folder(tmp_path, "--here", waits=True).close()
        assert (tmp_path / "end").exists()


def test_a_folder_that_has_a_lock_alone_is_removed(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    unlock_folder(lock_folder(new, "--here"), new)
    lock = lock_folder(old, "--here")
    (old / "best.pt").touch()
    unlock_folder(lock, old)
    assert lock.closed
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".lock", "best.pt", "old"]


@pytest.mark.parametrize(("module", "name"), [(os, "open"), (fcntl, "lockf")])
def test_a_lock_that_another_start_deletes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """Else two runs would have a lock, one of them of a file without a name."""
    folder, others, ours = tmp_path / "new", iter([True]), getattr(module, name)

    def delete_first(*args: Any) -> Any:
        if next(others, False):
            (folder / ".lock").unlink(missing_ok=True)
            folder.rmdir()
        return ours(*args)

    monkeypatch.setattr(module, name, delete_first)
    with lock_folder(folder, "--here") as lock:
        assert os.path.samestat(os.fstat(lock.fileno()), (folder / ".lock").stat())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Issue: it was said that another run uses the folder, for ever."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with lock_folder(tmp_path, "--exp-name"):
        assert "its file system has no locks; start no other run in it" in capsys.readouterr().err
