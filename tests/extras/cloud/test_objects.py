from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from tests.object_store import MemoryBucket, ObjectStore, running_web
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import (
    Url,
    check_answers,
    delete,
    fetch_ahead,
    find_stamp,
    list_objects,
    put,
    read,
    read_version,
    start_reader,
)
from unet_ddp.extras.cloud.ranges import RangeFile
from unet_ddp.files import as_path

NAMES = ["a b#c%20.png", "ü/ö.png", "q?z=1&a.png", "..foo", "a+b"]


def url(text: str) -> Url:
    path = as_path(text)
    assert isinstance(path, Url)
    return path


FOLDER = url("s3://bucket/storage")


@pytest.fixture(params=["memory_store", pytest.param("object_store", marks=pytest.mark.processes)])
def bucket(request: pytest.FixtureRequest) -> MemoryBucket | ObjectStore:
    """Both kinds, which do the same; most other tests have the one in memory."""
    found: MemoryBucket | ObjectStore = request.getfixturevalue(request.param)
    return found


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("name", NAMES)
def test_what_was_put_is_read_under_any_name(name: str) -> None:
    put(FOLDER / name, name.encode())
    assert read(FOLDER / name) == name.encode()
    keys = {key: size for key, size, _ in list_objects(FOLDER)}
    assert keys[name] == len(name.encode()) == find_stamp(FOLDER / name)[0]


@pytest.mark.usefixtures("bucket")
def test_large_and_empty_objects_are_whole() -> None:
    for content in (os.urandom(40_000_000), b""):
        put(FOLDER / "large", content)
        assert read(FOLDER / "large") == content
    delete(FOLDER / "large")
    delete(FOLDER / "large")  # what is not there is deleted already
    with pytest.raises(UserError, match=r"storage/large: not found"):
        read(FOLDER / "large")


@pytest.mark.usefixtures("bucket")
def test_a_new_object_replaces_none() -> None:
    put(FOLDER / "one", b"first", replaces=False)
    with pytest.raises(FileExistsError):
        put(FOLDER / "one", b"second", replaces=False)
    assert read(FOLDER / "one") == b"first"


def test_only_the_version_that_is_known_is_replaced(bucket: MemoryBucket | ObjectStore) -> None:
    """One of two that know the same version wins; an answer that was lost is no loss."""
    assert read_version(FOLDER / "pointer") is None
    first = put(FOLDER / "pointer", b"first", replaces=False)
    assert read_version(FOLDER / "pointer") == (b"first", first)
    if isinstance(bucket, ObjectStore):
        bucket.set_fault("unheard", method="PUT", count=1)
    second = put(FOLDER / "pointer", b"second", replaces=first)
    with pytest.raises(FileExistsError):
        put(FOLDER / "pointer", b"third", replaces=first)
    assert read_version(FOLDER / "pointer") == (b"second", second)


def test_a_file_whose_answer_was_lost_replaces_none_either(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"content")
    object_store.set_fault("unheard", method="PUT", count=1)
    put(FOLDER / "unheard", tmp_path / "a", replaces=False)
    assert read(FOLDER / "unheard") == b"content"


@pytest.mark.usefixtures("bucket")
def test_sub_folders_can_be_left_out() -> None:
    for name in ("flat/a", "flat/b", "flat/sub/c", "flatter"):
        put(FOLDER / name, b"")
    keys = {
        deep: [key for key, _, _ in list_objects(FOLDER / "flat", is_deep=bool(deep))]
        for deep in (0, 1)
    }
    assert keys == {0: ["a", "b"], 1: ["a", "b", "sub/c"]}


@pytest.mark.usefixtures("memory_store")
def test_a_bucket_is_a_folder_too() -> None:
    bucket = url("s3://bucket")
    began = time.time_ns()
    put(bucket / "a", b"12")
    put(bucket / "sub" / "b", b"")
    (found,) = list_objects(bucket, is_deep=False)
    assert [key for key, _, _ in list_objects(bucket)] == ["a", "sub/b"]
    assert found == ("a", *find_stamp(bucket / "a")) and found[1] == 2
    assert began - 10_000 <= found[2] <= time.time_ns() + 10_000  # which has microseconds


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("is_local", [True, False])
def test_a_file_in_an_archive_is_read_alone(tmp_path: Path, is_local: bool) -> None:
    archive = tmp_path / "a.tar" if is_local else FOLDER / "a.tar"
    if isinstance(archive, Url):
        put(archive, b"0123456789")
    else:
        archive.write_bytes(b"0123456789")
    part = url(f"{archive}#3+4/x.png")
    assert read(part) == part.read_bytes() == b"3456" and part.suffix == ".png"
    assert find_stamp(part) == (4, find_stamp(archive)[1])
    with pytest.raises(UserError, match=r"none.tar.*: (not found|No such file)"):
        read(url(f"{archive.parent}/none.tar#3+4/x.png"))


@pytest.mark.parametrize("key", ["odd//x.png", "odd/../x.png", "odd/./x.png"])
def test_a_listed_key_that_no_address_has_is_named(object_store: ObjectStore, key: str) -> None:
    boto3 = pytest.importorskip("boto3")
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    bucket = boto3.client("s3", endpoint_url=object_store.address, **keys)
    bucket.put_object(Bucket="bucket", Key=key, Body=b"x")
    try:
        with pytest.raises(UserError, match=r"^s3://bucket/odd: has the key odd/") as error:
            list(list_objects(Url("s3://bucket/odd")))
        assert f"has the key {key}, of which a part is empty or dots" in str(error.value)
    finally:
        bucket.delete_object(Bucket="bucket", Key=key)


@pytest.mark.parametrize("kind", ["throttled", "cut", "half"])
def test_answers_with_faults_are_asked_for_again(object_store: ObjectStore, kind: str) -> None:
    content = os.urandom(3_000_000)
    put(FOLDER / "b.bin", content)
    object_store.set_fault(kind, every=2, count=5)
    for _ in range(4):
        assert read(FOLDER / "b.bin") == content


def test_what_a_server_without_versions_cuts_is_asked_for_again(tmp_path: Path) -> None:
    content = os.urandom(30_000_000)  # in parts
    (tmp_path / "large.bin").write_bytes(content)
    (tmp_path / "small.bin").write_bytes(content[:1000])
    with running_web(tmp_path, cuts=True) as web:
        assert read(Url(f"{web}/large.bin")) == content
        assert read(Url(f"{web}/small.bin")) == content[:1000]
        small = Url(f"{web}/small.bin")
        with RangeFile(small, find_stamp(small)) as file:
            assert file.seek(100) and file.read() == content[100:1000]
        found = read_version(small)
        assert found is not None and found[0] == content[:1000]


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


@pytest.mark.parametrize("name", ["held", "held.tar#2+3/x"])
def test_held_objects_are_fetched_once(bucket: MemoryBucket | ObjectStore, name: str) -> None:
    put(FOLDER / name.partition("#")[0], b"content")
    path = url(f"{FOLDER}/{name}")
    before = bucket.count_requests()
    fetch_ahead([path, Path("a.png")])
    contents = {read(path), read(path)}
    fetch_ahead([path])
    assert {path.read_bytes()} == contents
    assert bucket.count_requests() == before + 1
    fetch_ahead([])
    assert {read(path)} == contents and bucket.count_requests() == before + 2


@pytest.mark.parametrize(
    ("spans", "requests"),
    [
        ([(0, 3), (3, 4)], 1),
        ([(1, 3), (4 + 4096, 4)], 1),
        ([(1, 3), (4 + 4097, 4)], 2),
        ([(3, 4), (0, 3)], 2),
        ([(0, 3), (2, 3)], 2),
        ([(0, 3), (3, 4), (7, 1), (8, 2)], 2),
    ],
)
def test_an_image_and_its_mask_in_an_archive_take_one_request(
    memory_store: MemoryBucket, spans: list[tuple[int, int]], requests: int
) -> None:
    """If the second begins where the first ends, or soon after it."""
    content = os.urandom(5000)
    put(FOLDER / "a.tar", content)
    paths = [url(f"{FOLDER}/a.tar#{first}+{size}/x.png") for first, size in spans]
    before = memory_store.count_requests()
    fetch_ahead(paths)
    found = [read(path) for path in paths]
    assert found == [content[first : first + size] for first, size in spans]
    assert memory_store.count_requests() == before + requests


def test_files_of_this_machine_are_not_held(tmp_path: Path) -> None:
    part = url(f"{tmp_path}/a.tar#1+2/x.png")
    (tmp_path / "a.tar").write_bytes(b"0123")
    fetch_ahead([part, tmp_path / "a.tar"])
    (tmp_path / "a.tar").write_bytes(b"4567")
    assert read(part) == b"56"


@pytest.mark.usefixtures("bucket")
def test_what_can_not_be_held_is_said_when_it_is_read() -> None:
    fetch_ahead([FOLDER / "missing"])
    with pytest.raises(UserError, match=r"storage/missing: not found"):
        read(FOLDER / "missing")
    assert not (FOLDER / "missing").exists()
    fetch_ahead([])


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("warns", [True, False])
def test_slow_storage_is_said_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warns: bool
) -> None:
    """By one of the reading processes."""
    put(FOLDER / "slow", b"")
    now = 1000.0

    def clock() -> float:
        nonlocal now
        now += 11
        return now

    monkeypatch.setattr("unet_ddp.extras.cloud.objects.time.monotonic", clock)
    start_reader(warns=warns)
    for _ in range(3):
        read(FOLDER / "slow")
    line = f"warning: {FOLDER}/slow: took 11 s; storage is slow\n" * warns
    assert capsys.readouterr().err == line
    now += 60
    read(FOLDER / "slow")
    assert capsys.readouterr().err == line
    start_reader(warns=True)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("kind", ["bytes", "path", "file"])
@pytest.mark.parametrize(
    ("faults", "pauses"), [([], []), (["cut"] * 2, [1, 4]), (["heard", "cut"], [1, 4])]
)
def test_a_put_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, faults: list[str], pauses: list[int]
) -> None:
    """Cut off before it was heard, or after."""
    slept, once, left = list[float](), obstore.put, iter(faults)

    def put_once(store: Any, key: str, content: Any, *, mode: Any) -> Any:
        fault = next(left, "")
        if fault != "cut":
            found = once(store, key, content, mode=mode)
        elif not isinstance(content, (bytes, Path)):
            content.read(3)
        if fault:
            raise GenericError(fault)
        return found

    monkeypatch.setattr(obstore, "put", put_once)
    monkeypatch.setattr("unet_ddp.extras.cloud.objects.time.sleep", slept.append)
    (tmp_path / "a").write_bytes(b"content")
    with (tmp_path / "a").open("rb") as file:
        content = {"bytes": b"content", "path": tmp_path / "a", "file": file}[kind]
        is_heard = "heard" in faults and kind != "file"  # of which none may be there already
        version = put(FOLDER / "a", content, replaces=not is_heard)
    assert read_version(FOLDER / "a") == (b"content", version) and slept == pauses


@pytest.mark.parametrize(
    ("error", "seconds", "pauses"),
    [
        (GenericError("cut"), 0, [1, 4, 15]),
        (GenericError("cut"), 100, [1, 4]),  # then they would end after the five minutes
        (GenericError("cut"), 299, [1]),
        (PermissionDeniedError("status code: 403"), 0, []),
    ],
)
def test_a_put_is_given_up(
    memory_store: MemoryBucket,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    seconds: int,
    pauses: list[int],
) -> None:
    now, slept = 1000.0, list[float]()

    def put_once(*args: Any, **how: Any) -> Any:
        nonlocal now
        now += seconds
        raise error

    monkeypatch.setattr(obstore, "put", put_once)
    monkeypatch.setattr("unet_ddp.extras.cloud.objects.time.sleep", slept.append)
    monkeypatch.setattr("unet_ddp.extras.cloud.objects.time.monotonic", lambda: now)
    with pytest.raises(UserError, match=r"^s3://bucket/storage/a: (cut|access is denied)"):
        put(FOLDER / "a", b"")
    assert slept == pauses


def test_web_servers_are_read_only() -> None:
    folder = url("http://127.0.0.1:9/a")
    with pytest.raises(UserError, match=r"^http://127.0.0.1:9/a: web servers do not list their f"):
        list(list_objects(folder))
    with pytest.raises(UserError, match=r"^http://127.0.0.1:9/a: can't .* s3://, … with --out"):
        check_answers(folder, "--out")


@pytest.mark.usefixtures("memory_store")
def test_storage_is_asked_before_something_is_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    check_answers(FOLDER / "new", "--out")

    def refuse(*args: object) -> None:
        raise PermissionDeniedError("status code: 403")

    monkeypatch.setattr(obstore, "list", refuse)
    with pytest.raises(UserError, match=r"^s3://bucket/storage/new: access is denied"):
        check_answers(FOLDER / "new", "--out")
