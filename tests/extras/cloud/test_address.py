from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url
from unet_ddp.extras.cloud.address import split_address
from unet_ddp.files import as_path, is_address

FOLDER = Url("s3://bucket/storage")


def test_an_address_behaves_as_a_path() -> None:
    image = FOLDER / "sub" / "a.png"
    assert str(image) == "s3://bucket/storage/sub/a.png"
    assert (image.name, image.suffix, str(image.parent)) == ("a.png", ".png", f"{FOLDER}/sub")
    assert image.parent.parent == FOLDER and hash(image.parent.parent) == hash(FOLDER)
    assert str(image.with_suffix(".gif").absolute()) == f"{FOLDER}/sub/a.gif"
    assert pickle.loads(pickle.dumps(image)) == image and as_path(str(image)) == image


@pytest.mark.parametrize(
    "text", ["a/b.png", "data", "A_b://c", "/a.tar", "C:\\x", "", "a#1+2/b.png"]
)
def test_other_names_are_ordinary_paths(text: str) -> None:
    assert type(as_path(text)) is type(Path(text)) and as_path(text) == Path(text)


def test_file_addresses_are_ordinary_paths() -> None:
    assert as_path("file:///data/a.png") == Path("/data/a.png")


@pytest.mark.parametrize("text", ["file://http://h/", "http:/h/", "s3:", "file://gs://h/"])
def test_an_archive_is_at_no_address_that_is_address_does_not_know(text: str) -> None:
    """Those of a checkpoint that are would be opened, though `is_address` has refused the others."""
    text += "a.tar#0+1/b.csv"
    assert not is_address(text) and not is_address(as_path(text))


def test_a_scheme_that_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match=r"ftp://x/y: ftp:// is not known; use s3://"):
        as_path("ftp://x/y")


def test_a_signed_address_is_refused_without_its_signature() -> None:
    with pytest.raises(UserError, match=r"^https://h/a\.png: an address with a query") as error:
        as_path("https://h/a.png?X-Amz-Signature=secret")
    assert "secret" not in str(error.value)
    assert str(as_path("s3://bucket/what?.png")) == "s3://bucket/what?.png"


@pytest.mark.parametrize(
    ("text", "container", "key"),
    [
        ("s3://bucket/a/../b.png", "s3://bucket", "b.png"),
        ("s3://bucket", "s3://bucket", ""),
        ("http://host:8000/a%20b.png", "http://host:8000", "a b.png"),
        ("https://host/a%20b.png", "https://host", "a b.png"),
        ("s3://bucket/a%20b.png", "s3://bucket", "a%20b.png"),
    ],
)
def test_container_and_key(text: str, container: str, key: str) -> None:
    assert split_address(Url(text)) == (container, key)


@pytest.mark.parametrize(
    "text", ["s3://bucket/a//x.png", "gs://bucket//x.png", "az://bucket/a//", "s3://bucket//"]
)
def test_a_key_with_an_empty_part_is_refused(text: str) -> None:
    """A path would lose the part, and name another object."""
    with pytest.raises(UserError, match=f"^{text}: a key with an empty part"):
        as_path(text)
    assert str(as_path("s3://bucket/a/")) == "s3://bucket/a"
    assert str(as_path("http://host/a//x.png")) == "http://host/a/x.png"  # as servers take it


def test_an_address_without_container_is_refused() -> None:
    with pytest.raises(UserError, match=r"s3://: names no bucket"):
        split_address(Url("s3://"))


@pytest.mark.parametrize("scheme", ["http", "HTTPS", "s3", "gs", "az", "ftp"])
@pytest.mark.parametrize("user", ["user:secret", "secret", "user:sec/secret", "a:secret@b"])
def test_an_address_with_a_password_is_refused_and_not_shown(scheme: str, user: str) -> None:
    with pytest.raises(UserError, match=r"h/a\.png: a name or password in an address") as error:
        as_path(f"{scheme}://{user}@h/a.png")
    assert "secret" not in str(error.value)
