from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store import ObjectStore
from unet_ddp.errors import UserError
from unet_ddp.storage import (
    Url,
    as_path,
    delete,
    find_stamp,
    list_objects,
    local_file,
    put,
    read,
    read_version,
)

NAMES = ["a b#c%20.png", "ü/ö.png", "q?z=1&a.png", "..foo", "a+b"]


def url(text: str) -> Url:
    path = as_path(text)
    assert isinstance(path, Url)
    return path


FOLDER = url("s3://bucket/storage")


@pytest.fixture(autouse=True)
def _no_faults(object_store: ObjectStore) -> Iterator[None]:
    yield
    object_store.set_fault("none")


def test_an_address_behaves_as_a_path() -> None:
    image = FOLDER / "sub" / "a.png"
    assert str(image) == os.fspath(image) == "s3://bucket/storage/sub/a.png"
    assert (image.name, image.suffix, str(image.parent)) == ("a.png", ".png", f"{FOLDER}/sub")
    assert image.parent.parent == FOLDER and hash(image.parent.parent) == hash(FOLDER)
    assert str(image.with_suffix(".gif").absolute()) == f"{FOLDER}/sub/a.gif"
    assert pickle.loads(pickle.dumps(image)) == image and as_path(str(image)) == image


@pytest.mark.parametrize("text", ["a/b.png", "/a.tar", "C:\\x", "", "a#1+2/b.png"])
def test_other_names_are_ordinary_paths(text: str) -> None:
    assert type(as_path(text)) is type(Path(text)) and as_path(text) == Path(text)


def test_file_addresses_are_ordinary_paths() -> None:
    assert as_path("file:///data/a.png") == Path("/data/a.png")


def test_a_scheme_that_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match=r"ftp://x/y: ftp:// is not known; use s3://"):
        as_path("ftp://x/y")


@pytest.mark.parametrize("name", NAMES)
def test_what_was_put_is_read_under_any_name(name: str) -> None:
    put(FOLDER / name, name.encode())
    assert read(FOLDER / name) == name.encode()
    keys = {key: size for key, size, _ in list_objects(FOLDER)}
    assert keys[name] == len(name.encode()) == find_stamp(FOLDER / name)[0]


def test_large_and_empty_objects_are_whole() -> None:
    for content in (os.urandom(40_000_000), b""):
        put(FOLDER / "large", content)
        assert read(FOLDER / "large") == content
    delete(FOLDER / "large")
    delete(FOLDER / "large")  # what is not there is deleted already
    with pytest.raises(UserError, match=r"storage/large: not found"):
        read(FOLDER / "large")


def test_a_new_object_replaces_none() -> None:
    put(FOLDER / "one", b"first", replaces=False)
    with pytest.raises(FileExistsError):
        put(FOLDER / "one", b"second", replaces=False)
    assert read(FOLDER / "one") == b"first"


def test_only_the_version_that_is_known_is_replaced(object_store: ObjectStore) -> None:
    """Of two that know the same version one wins; an answer that was lost is no loss."""
    assert read_version(FOLDER / "pointer") is None
    first = put(FOLDER / "pointer", b"first", replaces=False)
    assert read_version(FOLDER / "pointer") == (b"first", first)
    object_store.set_fault("unheard", method="PUT", count=1)
    second = put(FOLDER / "pointer", b"second", replaces=first)
    with pytest.raises(FileExistsError):
        put(FOLDER / "pointer", b"third", replaces=first)
    assert read_version(FOLDER / "pointer") == (b"second", second)
    with pytest.raises(UserError, match="no such bucket"):
        read_version(url("s3://missing/a"))


def test_sub_folders_can_be_left_out() -> None:
    for name in ("flat/a", "flat/b", "flat/sub/c"):
        put(FOLDER / name, b"")
    keys = {
        deep: [key for key, _, _ in list_objects(FOLDER / "flat", is_deep=deep)] for deep in (0, 1)
    }
    assert keys == {0: ["a", "b"], 1: ["a", "b", "sub/c"]}


@pytest.mark.parametrize("is_local", [True, False])
def test_a_file_in_an_archive_is_read_alone(tmp_path: Path, is_local: bool) -> None:
    archive = tmp_path / "a.tar" if is_local else FOLDER / "a.tar"
    if isinstance(archive, Url):
        put(archive, b"0123456789")
    else:
        archive.write_bytes(b"0123456789")
    part = url(f"{archive}#3+4/x.png")
    assert read(part) == b"3456" and part.suffix == ".png" and find_stamp(part)[0] == 4


def test_a_copy_of_an_object_has_its_suffix_and_errors_name_the_object() -> None:
    put(FOLDER / "a.png", b"content")
    with (
        pytest.raises(UserError, match=r"s3://bucket/storage/a.png: corrupt"),
        local_file(FOLDER / "a.png") as copy,
    ):
        assert copy.suffix == ".png" and copy.read_bytes() == b"content"
        raise UserError(f"{copy}: corrupt")
    assert not copy.exists()


@pytest.mark.parametrize("kind", ["throttled", "cut", "half"])
def test_answers_with_faults_are_asked_for_again(object_store: ObjectStore, kind: str) -> None:
    content = os.urandom(3_000_000)
    put(FOLDER / "b.bin", content)
    object_store.set_fault(kind, every=2, count=5)
    for _ in range(4):
        assert read(FOLDER / "b.bin") == content


@pytest.mark.parametrize("kind", ["throttled", "cut"])
def test_an_upload_survives_faults(object_store: ObjectStore, tmp_path: Path, kind: str) -> None:
    content = os.urandom(20_000_000)
    (tmp_path / "c.bin").write_bytes(content)
    object_store.set_fault(kind, every=2, method="PUT", count=2)
    put(FOLDER / "c.bin", tmp_path / "c.bin")
    assert read(FOLDER / "c.bin") == content
    object_store.set_fault(kind, method="PUT", count=1)
    with (tmp_path / "c.bin").open("rb") as file:
        put(FOLDER / "d.bin", file)
    assert read(FOLDER / "d.bin") == content


def test_what_can_not_be_reached_is_one_line_within_seconds(
    monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore
) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"s3://missing/a: there is no such bucket; create it"):
        list(list_objects(url("s3://missing/a")))
    with pytest.raises(UserError, match=r"s3://missing/a: there is no such bucket"):
        put(url("s3://missing/a"), b"")
    with pytest.raises(UserError, match=r"az://a/b: no keys .* set AZURE_STORAGE_ACCOUNT_NAME"):
        read(url("az://a/b"))
    assert time.monotonic() - started < 10
