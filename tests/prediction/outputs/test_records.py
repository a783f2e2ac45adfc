"""Records of all images: one process's, and all of them merged."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.object_store import MemoryBucket
from tests.prediction.outputs.writing import image_files, make, predicted
from tests.ranks import Ranks
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import list_objects, read
from unet_ddp.files import as_path
from unet_ddp.prediction.outputs import records as module
from unet_ddp.prediction.outputs.base import Output
from unet_ddp.prediction.outputs.records import Records

NOTHING = predicted(np.zeros((1, 1), np.uint8), Labels((0, 1)))


class Names(Output):
    """The images' names."""

    header, separator, footer = "[", ",", "]\n"

    def record(self, image: Any, prediction: Any) -> str:
        name = str(image.image)
        return "" if name == "none" else f"«{name}»"


def names(path: Path | str) -> Names:
    output = make(Names, NOTHING.labels)
    output.path = as_path(str(path))
    return output


def add(records: Records, index: int, name: str) -> None:
    records.add(image_files(name, index=index), NOTHING)


def merge_of_rank(path: str, piece: int) -> None:
    module.PIECE = piece
    world = join("cpu", 60)
    with closing(Records(names(path))) as records:
        for index in (4, 1, 7, 0, 2, 3, 6, 10):
            if index % world.size == world.rank:
                add(records, index, "none" if index == 2 else f"{index}")
        records.merge(world)
    leave(world)


@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_records_of_several_processes_are_merged_in_the_images_order(
    tmp_path: Path, ranks: Ranks, piece: int
) -> None:
    path = tmp_path / "very" / "deep" / "list.csv"
    ranks.run(3, merge_of_rank, str(path), piece)
    assert path.read_text() == "[\n«0»,\n«1»,\n«3»,\n«4»,\n«6»,\n«7»,\n«10»\n]\n"
    assert list(path.parent.iterdir()) == [path]


def test_records_are_merged_as_they_are(tmp_path: Path) -> None:
    """With line breaks, and with the names of files that are no UTF-8."""
    found: list[list[str]] = []

    class Twice(Names):
        def merge(self, records: Any, file: Any) -> None:
            found.extend([[*records], [*records]])
            file.write("".join(found[0]))

    output = Twice(*(getattr(names("x"), part) for part in ("config", "labels", "image_format")))
    output.path = tmp_path / "a"
    parts = ["1\n0 3\n", "\r\n", "plain", "y\udcff"]
    with closing(Records(output)) as records:
        for index, name in reversed([*enumerate(parts)]):
            add(records, index, name)
        records.merge(World())
    assert found == [[f"«{name}»" for name in parts]] * 2
    text = "".join(found[0]).encode("utf-8", "surrogateescape")
    assert (tmp_path / "a").read_bytes() == text


def test_a_file_of_nothing_has_header_and_footer(tmp_path: Path) -> None:
    with closing(Records(names(tmp_path / "a"))) as records:
        add(records, 0, "none")
        records.merge(World())
    assert (tmp_path / "a").read_text() == "[\n]\n"
    assert [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_records_for_a_file_in_storage(memory_store: MemoryBucket, tmp_path: Path) -> None:
    path: Any = as_path("s3://bucket/lists/l.csv")
    with closing(Records(names(path))) as records:
        add(records, 0, "0")
        records.merge(World())
    assert read(path).decode() == "[\n«0»\n]\n"
    assert [name for name, _, _ in list_objects(path.parent)] == ["l.csv"]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("wb")  # noqa: SIM115  # Records closes it
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: full)
    with closing(Records(names(tmp_path / "list.csv"))) as records:
        line = r"list\.csv: can't be written: No space .*; make room, or"
        with pytest.raises(UserError, match=line):
            add(records, 0, "a")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/list\.csv: can't be written"):
        Records(names(tmp_path / "file" / "list.csv"))


def test_a_file_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.mkdir()  # in the way
    with closing(Records(names(path))) as records:
        line = r"^\S*list\.csv: can't be written: Is a directory; name another file$"
        with pytest.raises(UserError, match=line):
            records.merge(World())
    assert [*tmp_path.iterdir()] == [path]
