"""A file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from unet_ddp import files
from unet_ddp.errors import UserError
from unet_ddp.files import (
    cache_folder,
    check_new_folder,
    check_writable,
    exit_on_signals,
    is_alive,
    make_temporary,
    make_writable,
    open_own,
    refuse_special,
    remove_stale,
    remove_temporary,
    replacing,
    replacing_folder,
    write_errors,
    write_text,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.txt"
    for text in ("one", "two"):
        with replacing(path) as temporary:
            assert temporary.parent == path.parent
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
        assert names(path.parent) == {"x.txt"}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == {"x.txt"}


def test_a_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError), replacing(Path()):
        pass
    assert names(tmp_path) == set()


def test_a_new_folder_is_there_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    check_new_folder(output)
    with pytest.raises(KeyError), replacing_folder(output) as folder:
        (folder / "half").touch()
        raise KeyError
    assert names(output.parent) == set()
    with replacing_folder(output) as folder:
        (folder / "whole").touch()
        assert not output.exists()
    assert names(output.parent) == {"out"} and names(output) == {"whole"}
    with pytest.raises(UserError, match="out: already exists; use another --output"):
        check_new_folder(output)


def test_permissions_are_those_of_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "x"):
        pass
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "x")]
    assert modes[0] == modes[1]
    before = os.umask(0o077)
    try:
        with replacing(tmp_path / "private"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Neither one in the file's place nor one that somebody planted for the temporary file."""
    victim, path = tmp_path / "victim", tmp_path / "x"
    victim.write_text("untouched")
    path.symlink_to(victim)
    with replacing(path) as temporary:
        assert stat.S_ISREG(temporary.lstat().st_mode)
        assert temporary.lstat().st_size == 0
        temporary.write_text("new")
    assert victim.read_text() == "untouched"
    assert not path.is_symlink() and path.read_text() == "new"
    seen = []
    for _ in range(2):
        with replacing(path) as temporary:
            seen.append(temporary.name)
    assert seen[0] != seen[1]  # can't be guessed
    assert all(name.startswith(f".x.{os.getpid()}.") and name.endswith(".tmp") for name in seen)


@pytest.mark.parametrize("durable", [False, True])
def test_a_durable_file_is_flushed_before_and_its_folder_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path, flushed, fsync = tmp_path / "x", [], os.fsync

    def noted(handle: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        flushed.append((is_folder, path.exists(), os.fstat(handle).st_size if not is_folder else 0))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    with replacing(path, durable=durable) as temporary:
        temporary.write_text("abc")
    assert flushed == ([(False, False, 3), (True, True, 0)] if durable else [])


def test_no_handle_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for k in range(3):
        with replacing(tmp_path / f"{k}", durable=True):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_text_is_utf_8_and_odd_names_are_kept(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "ä\udcff\n")
    assert (tmp_path / "x").read_bytes() == b"\xc3\xa4\xff\n"


def test_an_error_of_writing_is_one_line() -> None:
    with (
        pytest.raises(UserError, match=r"^a/b: can't be written: No space left on device$"),
        write_errors(Path("a/b")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(UserError, match=r"^a/b: can't be written: odd; use --output$"),
        write_errors(Path("a/b"), "use --output"),
    ):
        raise OSError("odd")
    for advice in ("make room", "free some space"):  # whose lack is not the reason
        for reason in (errno.EACCES, errno.EROFS):
            with pytest.raises(UserError) as caught, write_errors(Path("a"), f"{advice}, or use b"):
                raise OSError(reason, "No")
            assert str(caught.value) == "a: can't be written: No; use b"
        with (
            pytest.raises(UserError, match=r"written: No; make it writable$"),
            write_errors(Path("a"), advice),
        ):
            raise OSError(errno.EACCES, "No")
        for full in (
            OSError("20 written"),
            OSError(errno.ENOSPC, "No"),
            OSError(errno.EIO, "Broken"),
        ):
            with pytest.raises(UserError, match=advice), write_errors(Path("a"), advice):
                raise full
    with pytest.raises(ValueError, match="other"), write_errors(Path("a")):
        raise ValueError("other")


def test_the_cache_is_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "somewhere"))
    assert cache_folder() == tmp_path / "somewhere" / "unet_ddp"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "unet_ddp"
    monkeypatch.setenv("HOME", "/dev/null")  # can't be made: who writes says so
    assert cache_folder() == Path("/dev/null/.cache/unet_ddp")

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = cache_folder()
    assert folder == tmp_path / f"unet_ddp-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", ["writable", "writable by the group", "owned", "a link of theirs"])
def test_a_cache_that_others_can_write_to_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "unet_ddp"
    mine = cache_folder()
    assert mine == folder
    if how == "writable":
        folder.chmod(0o702)
    elif how == "writable by the group":
        stranger = SimpleNamespace(st_uid=os.getuid(), st_gid=os.getuid() + 1, st_mode=0o40720)
        monkeypatch.setattr(Path, "stat", lambda path, **_: stranger)
    elif how == "owned":
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    else:
        folder.rename(tmp_path / "mine")
        folder.symlink_to(tmp_path / "mine")
        lstat = Path.lstat
        theirs = SimpleNamespace(st_uid=os.getuid() + 1)
        monkeypatch.setattr(Path, "lstat", lambda path: theirs if path == folder else lstat(path))
    assert cache_folder(warns=False) is None
    assert capsys.readouterr().err == ""
    assert cache_folder() is None and cache_folder() is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {folder}: not used as cache, as other users own it or may")


@pytest.mark.parametrize("mode", ["a", "a+"])
def test_a_file_is_not_appended_to_through_a_link(tmp_path: Path, mode: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        open_own(tmp_path / "link", mode)
    assert not (tmp_path / "victim").exists()
    for _ in range(2):
        with open_own(tmp_path / "own", mode) as file:
            file.write("ä")
    assert (tmp_path / "own").read_text(encoding="utf-8") == "ää"


# -- is this folder writable ----------------------------------------------------------------------


def test_a_folder_or_where_it_would_be_made_is_writable(tmp_path: Path) -> None:
    check_writable(tmp_path, "--output")
    check_writable(tmp_path / "a" / "b", "--output")
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "no permission"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
    ],
)
def test_a_folder_that_is_not_writable_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    asked = []

    def refuse(*, dir: Path) -> None:
        asked.append(dir)
        raise error

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with pytest.raises(UserError) as caught:
        check_writable(tmp_path / "a", "--output")
    assert str(caught.value) == (
        f"{tmp_path / 'a'}: can't be written: {reason}; choose another folder with --output"
    )
    assert asked == [tmp_path]


def test_a_folder_is_made_and_tried(tmp_path: Path) -> None:
    make_writable(tmp_path / "a" / "b", "--rescue-dir")
    assert (tmp_path / "a" / "b").is_dir() and names(tmp_path / "a" / "b") == set()
    with pytest.raises(UserError, match=r"^/dev/null/a: can't be written: .*with --rescue-dir$"):
        make_writable(Path("/dev/null/a"), "--rescue-dir")


def test_a_file_in_a_folder_s_place_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    for folder in (path, path / "a" / "b"):
        with pytest.raises(
            UserError, match=f": can't be written: {path} is a file; choose another"
        ):
            check_writable(folder, "--output")


# -- processes and temporary files ----------------------------------------------------------------


@pytest.fixture
def dead() -> int:
    """The id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_zombie_is_not_alive(dead: int) -> None:
    assert is_alive(os.getpid()) and is_alive(os.getppid())
    assert not is_alive(dead)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
    assert not is_alive(child)
    os.waitpid(child, 0)
    assert not is_alive(child)


def test_systems_without_proc_are_asked_by_a_signal(
    monkeypatch: pytest.MonkeyPatch, dead: int
) -> None:
    def no_proc(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", no_proc)
    assert not is_alive(os.getpid())  # /proc is there and does not know it
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert is_alive(os.getpid())
    assert not is_alive(dead)
    assert not is_alive(2**70)


def test_only_temporary_files_of_dead_processes_and_of_these_files_are_removed(
    tmp_path: Path, dead: int
) -> None:
    stale = f".a.png.{dead}.x1_z.tmp"
    kept = {
        f".a.png.{os.getpid()}.x1_z.tmp",  # is being written
        f".b.png.{dead}.x1_z.tmp",  # of another file
        f"a.png.{dead}.x1_z.tmp",
        f".a.png.{dead}.x1_z.tmp.png",
        ".a.png.x1_z.tmp",
        "a.png",
    }
    other = tmp_path / "other"
    other.mkdir()
    for name in {stale, *kept}:
        (tmp_path / name).touch()
        (other / name).touch()
    remove_stale([tmp_path / "a.png", tmp_path / "c.png"])
    assert names(tmp_path) == {*kept, "other"}
    assert names(other) == {stale, *kept}
    remove_stale([other / "a.png", other / "b.png"])
    assert names(other) == kept - {f".b.png.{dead}.x1_z.tmp"}


def closed(*_: object) -> int:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("place", ["", "a closed terminal", "a process of --nproc"])
def test_a_signal_ends_the_process_without_its_temporary_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    place: str,
) -> None:
    """What started a process of --nproc says it, and ends one because another failed, which nobody stopped."""

    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        raise Ended(status)

    monkeypatch.setattr(os, "_exit", end)
    if place == "a closed terminal":
        monkeypatch.setattr(os, "write", closed)
    elif place:
        monkeypatch.setenv("UNET_DDP_NPROC", "2")
    for _ in range(2):
        os.close(make_temporary(tmp_path / "forgotten"))
        remove_temporary(tmp_path / "forgotten")
    (tmp_path / "forgotten").touch()  # by another
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in handled}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        for number in (signal.SIGINT, signal.SIGTERM):
            with (
                pytest.raises(Ended, match=str(128 + number)),
                exit_on_signals(),
                replacing(tmp_path / "x") as one,
            ):
                assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
                os.close(make_temporary(tmp_path / "gone already"))
                (tmp_path / "gone already").unlink()
                try:
                    os.kill(os.getpid(), number)
                finally:
                    assert not one.exists()
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
        said = "" if place else "stopped; continue with --skip-existing\n" * 2
        assert capfd.readouterr().err == said
        assert names(tmp_path) == {"forgotten"}
    finally:
        remove_temporary(tmp_path / "gone already")
        for number, handler in before.items():
            signal.signal(number, handler)


def test_only_files_and_folders_may_be_opened(tmp_path: Path) -> None:
    """A folder's own error says more."""
    for path in (tmp_path, tmp_path / "file", tmp_path / "link"):
        if path.name == "link":
            path.symlink_to("file")
        elif path.name == "file":
            path.touch()
        refuse_special(path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "linked").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "linked", Path("/dev/zero")):
        with pytest.raises(UserError) as caught:
            refuse_special(path)
        assert str(caught.value) == f"{path}: is a pipe, socket or device, not a file; remove it"
    with pytest.raises(FileNotFoundError):
        refuse_special(tmp_path / "gone")


def test_a_stale_file_that_another_process_removes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / f".a.png.{2**22 + 1}.x1.tmp"
    stale.touch()
    monkeypatch.setattr(files, "is_alive", lambda process: bool(stale.unlink()))
    remove_stale([tmp_path / "a.png"])
    assert names(tmp_path) == set()
