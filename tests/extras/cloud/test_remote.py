"""Addresses as the core has them: paths whose object is fetched when it is opened."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.object_store import MemoryBucket
from tests.prediction.models import write_model
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, pointer, put
from unet_ddp.extras.cloud.clients import DeniedError
from unet_ddp.files import (
    as_local_path,
    as_path,
    check_writable,
    exit_on_signals,
    is_address,
    replacing,
    write_text,
)
from unet_ddp.storage import local_file

FOLDER = Url("s3://bucket/remote")


def test_an_object_is_fetched_once_when_it_is_opened(memory_store: MemoryBucket) -> None:
    put(FOLDER / "a.txt", b"content")
    before = memory_store.count_requests()
    path = as_path(f"{FOLDER}/a.txt")
    assert (str(path), path.name, str(path.parent)) == (f"{FOLDER}/a.txt", "a.txt", str(FOLDER))
    assert memory_store.count_requests() == before
    assert path.read_bytes() == b"content" and Path(os.fspath(path)).suffix == ".txt"
    with path.open() as file:
        assert file.read() == "content"
    assert memory_store.count_requests() == before + 1


@pytest.mark.usefixtures("memory_store")
def test_the_copy_is_removed_with_its_path() -> None:
    put(FOLDER / "a.txt", b"content")
    path = as_path(f"{FOLDER}/a.txt")
    copy = Path(os.fspath(path))
    assert copy.is_file()
    other = pickle.loads(pickle.dumps(path))  # another process fetches its own
    assert other == path and str(other) == str(path) and os.fspath(other) != str(copy)
    del path
    assert not copy.exists()


@pytest.mark.usefixtures("memory_store")
def test_errors_about_a_copy_name_the_object() -> None:
    put(FOLDER / "a.png", b"content")
    with (
        pytest.raises(UserError, match=r"^s3://bucket/remote/a.png: corrupt$"),
        local_file(FOLDER / "a.png") as copy,
    ):
        assert copy.suffix == ".png" and copy.read_bytes() == b"content"
        raise UserError(f"{copy}: corrupt")
    assert not copy.exists()


@pytest.mark.usefixtures("memory_store")
def test_of_an_object_that_can_not_be_read_no_copy_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = as_path(f"{FOLDER}/none.txt")
    with pytest.raises(UserError, match=r"^s3://bucket/remote/none.txt: not found$"):
        path.read_bytes()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("memory_store")
def test_of_a_run_the_newest_checkpoint_is_opened() -> None:
    """Its last.pt is no object."""
    saved = {"name": "000003-1.pt", "generation": 3, "sha256": "", "size": 4}
    pointer = {"token": "t", "launch": None, "saves": [saved], "best": None, "files": []}
    put(FOLDER / "run" / "last.json", json.dumps(pointer).encode())
    put(FOLDER / "run" / "last" / "000003-1.pt", b"last")
    put(FOLDER / "run" / "best.pt", b"best")
    run = as_path(f"{FOLDER}/run")
    assert (run / "last.pt").exists() and (run / "last.pt").read_bytes() == b"last"
    assert (run / "best.pt").exists() and (run / "best.pt").read_bytes() == b"best"


@pytest.mark.usefixtures("memory_store")
def test_folders_have_their_own_objects() -> None:
    for name in ("v1.5/a.png", "v1.5/sub/b.png", "v1.5/c.md"):
        put(FOLDER / name, b"12")
    folder = as_path(f"{FOLDER}/v1.5")
    assert folder.is_dir() and not (folder / "a.png").is_dir() and not (folder / "c.md").is_dir()
    assert [path.name for path in folder.iterdir()] == ["a.png", "c.md"]
    assert next(folder.iterdir()).stat().st_size == 2
    assert not (folder / "none.png").exists() and not (folder / "none.png").is_dir()


def test_what_is_an_address() -> None:
    assert is_address("s3://bucket/x") and is_address("http://host/x://y")
    assert is_address(as_path("az://container/x"))
    assert is_address(as_path("s3://bucket/a.tar#0+1/a.png"))
    assert not is_address(as_path("a.tar#0+1/a.png"))
    assert not any(map(is_address, ("data/imgs", "file:///data", None, "a.tar#0+1/a.png")))
    assert as_path("file:///data") == Path("/data") == as_local_path("/data", "--output")
    with pytest.raises(UserError, match=r"^--output gs://b/x: is an address"):
        as_local_path("gs://b/x", "--output")
    with pytest.raises(UserError, match=r"^https://h/a: an address with a query") as error:
        as_local_path("https://h/a?signature=secret", "--output")
    assert "secret" not in str(error.value)


@pytest.mark.usefixtures("memory_store")
def test_what_is_written_to_an_address_is_put_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = as_path(f"{FOLDER}/out/a.csv")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert not path.exists()
    write_text(path, "whole")
    assert path.read_text() == "whole"
    del path
    assert not list(tmp_path.iterdir())
    check_writable(as_path(f"{FOLDER}/new"), "--output")
    with pytest.raises(UserError, match=r"^http://h/x: can't be written to; .* with --output$"):
        check_writable(as_path("http://h/x"), "--output")


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("is_fetched", [True, False])
def test_a_signal_leaves_no_copy(tmp_path: Path, is_fetched: bool, is_at_once: bool) -> None:
    """The object is open, or a file is being written, or its file is there and nothing else is done."""
    put(FOLDER / "a.txt", b"content")
    path = as_path(f"{FOLDER}/a.txt")
    opened = os.open

    def open_and_stop(*args: Any) -> int:
        handle = opened(*args)
        signal.raise_signal(signal.SIGTERM)
        return handle

    process = os.fork()
    if process == 0:
        tempfile.tempdir = str(tmp_path)
        if is_at_once:
            os.open = open_and_stop  # type: ignore[assignment]
        with exit_on_signals(), ExitStack() as stack:
            copy = Path(os.fspath(path)) if is_fetched else stack.enter_context(replacing(path))
            assert copy.exists()
            signal.raise_signal(signal.SIGTERM)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["best.pt", "last.pt"])
def test_a_server_s_page_is_no_pointer_and_the_file_is_named(
    memory_store: MemoryBucket, name: str
) -> None:
    """Issue: of best.pt, last.json was called corrupt, and its run was to be deleted."""
    run = Url("s3://bucket/pages/run")
    for each in ("last.json", name):
        put(run / each, b"<!doctype html><html>please log in</html>")
    with pytest.raises(
        UserError, match=rf"^{run}/{name}: no checkpoint, .* it is a web page; downl"
    ):
        checkpoint.load(run / name)
    put(run / "last.json", b'{"token": 5}')
    with pytest.raises(
        UserError, match=rf"^{run}/last.json: corrupt .*; name a file in {run}/last"
    ):
        checkpoint.load(run / name)


@pytest.mark.usefixtures("memory_store")
def test_a_server_that_denies_what_is_not_there_has_the_file_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As S3 without the right to list."""
    run = Url("s3://bucket/denied/run")
    write_model(tmp_path / "best.pt", Labels((0, 1)))
    put(run / "best.pt", tmp_path / "best.pt")

    def deny(path: Path) -> None:
        raise DeniedError(f"{path}: access is denied")

    monkeypatch.setattr(pointer, "read_version", deny)
    assert checkpoint.load(run / "best.pt").keys() == checkpoint.load(tmp_path / "best.pt").keys()
    monkeypatch.setattr("unet_ddp.extras.cloud.remote.read_chunks", deny)
    with pytest.raises(UserError, match=rf"^{run}/best.pt: access is denied"):
        checkpoint.load(run / "best.pt")
