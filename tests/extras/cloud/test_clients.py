from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from obstore.exceptions import BaseError, GenericError, NotSupportedError

from tests.object_store import MemoryBucket, ObjectStore
from unet_ddp.errors import UserError, how_to_install
from unet_ddp.extras.cloud import (
    NotFoundError,
    StorageError,
    Url,
    clients,
    find_stamp,
    list_objects,
    put,
    read,
    read_version,
    start_reader,
)
from unet_ddp.extras.cloud.clients import explain

MISSING = Url("s3://missing/a")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            GenericError("GET x: 404 <Code>NoSuchBucket</Code>"),
            "no such bucket; create it, or corr",
        ),
        (FileNotFoundError("<Code>ContainerNotFound</Code>"), "no such bucket; create it"),
        (
            GenericError("GET http://169.254.169.254/latest"),
            "no keys to it were found; set AWS_ACC",
        ),
        (
            GenericError("GET http://metadata.google.internal/"),
            "no keys to it were found; set AWS_",
        ),
        (ValueError("Account must be specified"), "no keys to it were found; set AWS_ACCESS_KEY_"),
        (GenericError("status code: 401"), "access is denied; set AWS_ACCESS_KEY_ID and AWS_SEC"),
        (GenericError("status code: 403 No"), "access is denied; set AWS_ACCESS_KEY_ID"),
        (GenericError("status code: 4033"), "status code: 4033"),
        (
            GenericError("GET: error sending request for url (http://127.0.0.1:9/bucket/a) no"),
            "http://127.0.0.1:9 can't be reached; check the name and the network",
        ),
        (GenericError("error sending request\n  to  it"), "error sending request to it"),
        (GenericError("at http://127.0.0.1:9: half"), "at http://127.0.0.1:9: half"),
        (GenericError("half\nDebug source:\nGeneric {}"), "half"),
        (GenericError("x" * 400), "x" * 300),
        (GenericError("HTTP error: error following redirect"), "redirects in a circle; open it in"),
        (GenericError("HTTP error: request or response body error"), "or download the file"),
        (GenericError("Content-Length Header missing from response"), "; download the file"),
        (
            NotSupportedError("Operation not supported: Range request not supported by a.tar"),
            "the server sends no parts of files (range requests); copy the files to a folder",
        ),
    ],
)
def test_errors_of_clients_are_one_line(error: Exception, said: str) -> None:
    found = explain(Url("s3://bucket/a"), error)
    assert isinstance(found, StorageError)
    text = str(found)
    assert text.startswith("s3://bucket/a: ") and said in text
    assert len(text) <= len("s3://bucket/a: ") + 300 and "\n" not in text and "Debug" not in text


def test_an_object_that_is_not_there_is_no_error_of_the_storage() -> None:
    found = explain(MISSING, FileNotFoundError("Object at location a not found"))
    assert isinstance(found, NotFoundError) and str(found) == "s3://missing/a: not found"


@pytest.mark.parametrize(
    ("address", "keys"),
    [
        ("s3://bucket/a:b", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"),
        ("gs://bucket/a", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket/a", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)  # fmt: skip
def test_the_keys_of_each_storage_are_named(address: str, keys: str) -> None:
    assert str(explain(Url(address), GenericError("status code: 403"))).endswith(f"; set {keys}")


@pytest.mark.parametrize("error", ["403 <Message>Request has expired</Message>", "401 no"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_web_server_that_denies_access_takes_no_keys(scheme: str, error: str) -> None:
    found = str(explain(Url(f"{scheme}://host/a"), GenericError(f"status code: {error}")))
    assert found.startswith(f"{scheme}://host/a: access is denied; download the file, or use s3://")
    assert "set" not in found


@pytest.mark.parametrize("key", ["metadata/x.png", "401.png", "set/403/x.png"])
def test_the_name_of_an_object_is_no_reason(key: str) -> None:
    error = GenericError(f"Error performing GET http://h/{key} - status code: 503 Slow Down")
    assert str(explain(Url(f"s3://bucket/{key}"), error)).endswith("503 Slow Down")


def test_a_container_that_has_answered_is_waited_for(
    memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For minutes in place of seconds: its name can't be wrong."""
    connect, waits = clients.connect, []

    def note(container: str, process: int, patience: timedelta) -> Any:
        waits.append(patience.total_seconds())
        return connect(container, process, patience)

    monkeypatch.setattr(clients, "connect", note)
    assert not Url("s3://bucket/a").exists()  # an error is no answer yet
    put(Url("s3://bucket/a"), b"")
    for _ in range(3):
        read(Url("s3://bucket/a"))
    assert waits == [5, 5, 5, 300, 300]
    monkeypatch.setattr(clients, "reached", set[str]())
    start_reader(warns=False)  # of a process that has reached it
    assert Url("s3://bucket/a").exists() and waits[-1] == 300


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("obstore"), f"needs the extra 'cloud': {how_to_install('cloud')}"),
        (ValueError("Account must be specified"), "no keys to it were found; set AWS_"),
    ],
)
def test_a_client_that_can_not_be_made_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*how: Any) -> Any:
        raise error

    monkeypatch.setattr(clients, "connect", fail)
    with pytest.raises(StorageError, match=r"^s3://missing/a: ") as found:
        find_stamp(MISSING)
    assert said in str(found.value) and not isinstance(found.value, BaseError)


def test_what_can_not_be_reached_is_one_line_within_seconds(object_store: ObjectStore) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"s3://missing/a: there is no such bucket; create it"):
        list(list_objects(MISSING))
    with pytest.raises(UserError, match=r"s3://missing/a: there is no such bucket"):
        put(MISSING, b"")
    with pytest.raises(UserError, match="no such bucket"):
        read_version(MISSING)
    with pytest.raises(UserError, match=r"az://a/b: no keys .* set AZURE_STORAGE_ACCOUNT_NAME"):
        read(Url("az://a/b"))
    assert time.monotonic() - started < 12


def test_denied_access_is_said(object_store: ObjectStore) -> None:
    object_store.set_fault("denied")
    folder = Url("s3://bucket/storage")
    for attempt in (lambda: read(folder / "a"), lambda: list(list_objects(folder))):
        with pytest.raises(UserError, match=r"access is denied; set AWS_ACCESS_KEY_ID"):
            attempt()
