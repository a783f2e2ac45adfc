"""Pairs in storage are found, matched and read as those of folders are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.test_pairs import touch
from tests.object_store import put_folder
from unet_ddp.data.matching import Report, find_pairs, read_list
from unet_ddp.data.pairs import Pair, Pairs, collect
from unet_ddp.data.remote_pairs import RemotePairs
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, find_stamp, put, read
from unet_ddp.files import as_path
from unet_ddp.storage import storage_of


def test_only_objects_in_storage_have_stamps_from_the_start() -> None:
    """A file's are found when it is read, so that a changed one is not taken from a cache."""
    local = Pair("a", Path("a.png"), Path("a_mask.png"))
    remote = Pair("b", Url("s3://bucket/b.png"), Path("b_mask.png"), stamps=((5, 7), None))
    both, one = collect([local, remote]), collect([local])
    assert type(collect([Pair("c", Path("c.png"), Path("m/*/c.png")), remote])) is RemotePairs
    assert type(both) is RemotePairs and type(one) is Pairs
    assert both.storage is storage_of("s3://bucket") and one.storage is None
    assert RemotePairs([local]).storage is None  # objects were named, and are not there
    assert [both.to_read(row).stamps for row in (0, 1)] == [(None, None), ((5, 7), None)]
    one.share()
    assert one.to_read(0).stamps == (None, None)
    assert type(both[:1]) is Pairs  # these are read like any others


@pytest.mark.usefixtures("memory_store")
def test_folders_in_storage_have_the_pairs_of_folders_on_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(tmp_path / "i", "a.png", "sub/b.JPG", ".hidden/c.png", "sub/.d.png", "notes.txt", ".png")
    touch(tmp_path / "m", "a_mask.png", "sub/b_mask.gif", "orphan.png", "c_mask.png")
    url = put_folder(tmp_path, Url("s3://bucket/pairs"))
    report = Report()
    local = find_pairs(tmp_path / "i", tmp_path / "m")
    remote = find_pairs(url / "i", url / "m", report)
    assert [pair.name for pair in remote] == [pair.name for pair in local]
    assert remote[1].mask == url / "m" / "sub" / "b_mask.gif"
    assert report.notes == [f"2 masks without image, e.g. {url}/m/c_mask.png"]
    for pair in remote:
        assert pair.stamps == (find_stamp(pair.image), find_stamp(pair.mask))
    with pytest.raises(UserError, match=r"s3://bucket/pairs/none: contains no images"):
        find_pairs(url / "none", url / "m")
    assert capsys.readouterr().err == ""  # a bar is for a terminal


@pytest.mark.usefixtures("memory_store")
def test_one_folder_in_storage_may_have_images_and_masks(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.png", "c.png", "masks/a.png", "masks/b.png", "masks/c.png")
    url = put_folder(tmp_path, Url("s3://bucket/one"))
    for masks in (url / "masks", url):
        report = Report()
        pairs = find_pairs(url, masks, report)
        assert [(p.image, p.mask) for p in pairs] == [
            (url / f"{name}.png", url / "masks" / f"{name}.png") for name in "abc"
        ]
        assert not report.problems


@pytest.mark.usefixtures("memory_store")
def test_a_list_may_name_addresses_and_be_one(tmp_path: Path) -> None:
    touch(tmp_path / "i", "a.png", "b.png")
    url = put_folder(tmp_path, Url("s3://bucket/listed"))
    rows = ["image,mask", "../i/a.png,../i/b.png", f"{url}/i/b.png,{tmp_path}/i/a.png"]
    put(url / "lists" / "l.csv", "\n".join([*rows, "../i/missing.png,../i/a.png"]).encode())
    report = Report(collects=True)
    first, second = read_list(as_path(f"{url}/lists/l.csv"), report)
    assert read(Url(str(first.image))) == b"" and first.stamps[0] == find_stamp(first.image)
    assert (second.image, second.mask) == (url / "i" / "b.png", tmp_path / "i" / "a.png")
    assert second.stamps == (find_stamp(second.image), None) and second.name == f"{url}/i/b"
    assert report.problems == [f"{url}/lists/../i/missing.png: not found"]
