"""Lists of all images: one process's lines, and all of them merged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.object_store import MemoryBucket
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs.lists import (
    Listed,
    ListFile,
    ShardFile,
    read_shards,
    remove_stale_shards,
)
from unet_ddp.storage import Url, as_path, exists, list_objects, put, read


def name_or_nothing(listed: Listed) -> str:
    name = str(listed.image)
    return "" if name == "none" else f"«{name}»"


def listed(name: str) -> Listed:
    return Listed(Path(name), np.zeros((1, 1), np.uint8))


def test_lines_of_several_processes_are_merged_in_the_images_order(tmp_path: Path) -> None:
    path = tmp_path / "very" / "deep" / "list.csv"
    each = ListFile(path, name_or_nothing, header=b"[", separator=b",", footer=b"]\n")
    shards = [ShardFile(each, rank) for rank in range(3)]
    for index in (4, 1, 7, 0, 2, 3, 6, 10):
        shards[index % 3].add(index, listed("none" if index == 2 else f"{index}"))
    lines = [line.decode() for line in read_shards(path, 3)]
    assert lines == ["«0»", "«1»", "", "«3»", "«4»", "«6»", "«7»", "«10»"]
    each.merge(3)
    assert path.read_text() == "[\n«0»,\n«1»,\n«3»,\n«4»,\n«6»,\n«7»,\n«10»\n]\n"
    assert len(list(path.parent.iterdir())) == 4
    for shard in shards:
        shard.close()
    assert list(path.parent.iterdir()) == [path]


def test_a_name_with_line_breaks_stays_one_line_of_a_list(tmp_path: Path) -> None:
    each = ListFile(tmp_path / "a", name_or_nothing, b"")
    shards = [ShardFile(each, rank) for rank in range(2)]
    for index, name in enumerate(("1\n0 3\n", "\n", "plain", "0\t\n")):
        shards[index % 2].add(index, listed(name))
    lines = [line.decode() for line in read_shards(tmp_path / "a", 2)]
    assert lines == ["«1\n0 3\n»", "«\n»", "«plain»", "«0\t\n»"]
    for shard in shards:
        shard.close()


def test_a_list_of_nothing_has_header_and_footer(tmp_path: Path) -> None:
    each = ListFile(tmp_path / "a", name_or_nothing, b"img,rle_mask")
    shard = ShardFile(each, 0)
    each.merge(1)
    assert (tmp_path / "a").read_bytes() == b"img,rle_mask\n"
    shard.add(0, listed("x"))
    shard.add(1, listed("y\udcff"))  # a file name that is no UTF-8
    each.merge(1)
    assert (
        tmp_path / "a"
    ).read_bytes() == "img,rle_mask\n«x»\n«y".encode() + b"\xff" + "»\n".encode()
    shard.close()


def test_shards_of_a_killed_job_are_removed_and_no_others(tmp_path: Path) -> None:
    for name in (".l[1].csv.0.part", ".l[1].csv.12.part", ".l1.csv.0.part", "l[1].csv", ".x.part"):
        (tmp_path / name).touch()
    remove_stale_shards(tmp_path / "l[1].csv")
    assert {path.name for path in tmp_path.iterdir()} == {"l[1].csv", ".l1.csv.0.part", ".x.part"}


def test_shards_of_a_killed_job_in_storage_are_removed_and_no_others(
    memory_store: MemoryBucket,
) -> None:
    folder = as_path("s3://bucket/shards")
    assert isinstance(folder, Url)
    names = {".l.csv.0.part", ".l.csv.12.part", ".m.csv.0.part", "l.csv", "sub/.l.csv.0.part"}
    for name in names:
        put(folder / name, b"")
    remove_stale_shards(folder / "l.csv")
    left = {name for name, _, _ in list_objects(folder)}
    assert left == {".m.csv.0.part", "l.csv", "sub/.l.csv.0.part"}


def test_lines_for_a_list_in_storage_are_shared_there_until_it_is_closed(
    memory_store: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = as_path("s3://bucket/lists/l.csv")
    assert isinstance(path, Url)
    each = ListFile(path, name_or_nothing, header=b"[", separator=b",", footer=b"]\n")
    shards = [ShardFile(each, rank) for rank in range(2)]
    for index in range(3):
        shards[index % 2].add(index, listed(f"{index}"))
    for rank, shard in enumerate(shards):
        assert not exists(path.parent / f".l.csv.{rank}.part")
        shard.share()
        assert exists(path.parent / f".l.csv.{rank}.part")
    each.merge(2)
    for shard in shards:
        shard.close()
    assert read(path).decode() == "[\n«0»,\n«1»,\n«2»\n]\n"
    assert [name for name, _, _ in list_objects(path.parent)] == ["l.csv"]
    assert not list(tmp_path.iterdir())


def test_a_link_in_a_shard_s_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    each = ListFile(tmp_path / "list.csv", name_or_nothing, b"")
    (tmp_path / ".list.csv.0.part").symlink_to(victim)
    ShardFile(each, 0).close()
    assert victim.read_text() == "untouched"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    shard = ShardFile(ListFile(tmp_path / "list.csv", name_or_nothing, b""), 0)
    shard._file.close()
    shard._file = Path("/dev/full").open("wb")  # noqa: SIM115
    with pytest.raises(UserError, match=r"list\.csv: can't be written: No space .*; make room, or"):
        shard.add(0, listed("a"))
    shard.close()  # which tries to write the rest
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    each = ListFile(tmp_path / "file" / "list.csv", name_or_nothing, b"")
    with pytest.raises(UserError, match=r"file/list\.csv: can't be written"):
        ShardFile(each, 0)


def test_a_list_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.mkdir()  # in the way
    each = ListFile(path, name_or_nothing, b"")
    shard = ShardFile(each, 0)
    with pytest.raises(UserError, match=r"^\S*list\.csv: can't be written: .*; make room, or name"):
        each.merge(1)
    shard.close()
    assert [*tmp_path.iterdir()] == [path]
