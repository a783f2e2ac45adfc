"""An index that somebody changed, with a digest that fits, is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import make_set
from tests.extras.packs.test_command import pack
from unet_ddp.config import DataConfig
from unet_ddp.errors import UserError
from unet_ddp.extras.packs.pack_columns import read_columns
from unet_ddp.extras.packs.pack_files import INDEX
from unet_ddp.extras.packs.pack_index import check_index

Index = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """The plain values and columns of a pack of 12 pairs, with groups, sides and sources."""
    folder = make_set(tmp_path_factory.mktemp("set"), 12)
    names = [path.name for path in (folder / "imgs").iterdir()]
    rows = [f"imgs/{n},masks/{n},{n[0]},{'val' if n < 'c' else 'train'},{n}" for n in names]
    (folder / "pairs.csv").write_text("\n".join(["image,mask,group,split,source", *rows]) + "\n")
    pack(DataConfig(pairs_file=str(folder / "pairs.csv")), folder / "pack")
    _, about, columns = read_columns(folder / "pack" / INDEX)
    return about, {name: column[:] for name, column in columns.items()}


def is_refused(about: dict[str, Any], columns: dict[str, Any]) -> bool:
    try:
        check_index(Path("p/pack.index"), about, columns)
    except UserError as error:
        assert str(error).startswith("p/pack.index: corrupt, or of another version of unet_ddp (")
        return True
    return False


def test_what_only_lists_have_may_be_missing_and_no_other_column(index: Index) -> None:
    about, columns = index
    assert not is_refused(about, columns)
    listed = {"group", "group_end", "side", "source", "source_end"}
    assert listed < columns.keys()
    rest = {name: columns[name] for name in columns.keys() - listed}
    assert not is_refused(about, rest)
    for name in rest:
        assert is_refused(about, {key: rest[key] for key in rest.keys() - {name}}), name
    assert is_refused(about, {**columns, "more": columns["kind"]})
    for name in ("group", "source"):
        assert is_refused(about, {**rest, name: columns[name]})  # without its ends


CHANGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("kind", lambda kinds: kinds + np.uint32(1)),  # of which there is one
    ("kind", lambda kinds: kinds.astype(np.int64)),
    ("side", lambda sides: sides + np.uint8(3)),
    ("side", lambda sides: sides[:-1]),
    ("place", lambda places: places[:, :3]),
    ("thumbnail", lambda thumbnails: thumbnails[1:]),
    ("value", lambda values: np.append(values, values[:1])),
    ("end", lambda ends: ends - 1),
    ("end", lambda ends: ends[::-1]),
    ("name", lambda texts: texts + (texts == 0)),  # not ended by zeros
    ("name", lambda texts: texts[:-1]),
    ("name", lambda texts: np.append(texts, texts[:1])),  # more than the names
    ("source", lambda texts: texts[:-1]),
    ("group_end", lambda ends: np.append(ends[1:], ends[-1])),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_columns_that_do_not_fit_are_refused(
    index: Index, name: str, change: Callable[[Any], Any]
) -> None:
    about, columns = index
    changed = np.ascontiguousarray(change(columns[name])).astype(change(columns[name]).dtype)
    assert not np.array_equal(changed, columns[name]) or changed.dtype != columns[name].dtype
    assert is_refused(about, {**columns, name: changed})


@pytest.mark.parametrize("block", [1, 5])
def test_columns_are_checked_block_by_block(
    index: Index, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A fault in the last block is found, and none where there is none."""
    about, columns = index
    monkeypatch.setattr("unet_ddp.extras.packs.pack_index.ROWS", block)
    assert not is_refused(about, columns)
    for name, value in (("kind", 1), ("side", 4), ("end", 10**6), ("name_end", 3)):
        changed = columns[name].copy()
        changed[-1] = value
        assert is_refused(about, {**columns, name: changed}), name


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "0123"}, {"attempt": "../"}, {"mark": ".png"}, {"validation": 12},
        {"validation": -1}, {"shards": []},
    ],
    ids=str,
)  # fmt: skip
def test_plain_values_that_no_pack_has_are_refused(index: Index, change: dict[str, Any]) -> None:
    about, columns = index
    assert is_refused({**about, **change}, columns)
    assert not is_refused({**about, "validation": 11, "attempt": "0123abcd-"}, columns)


@pytest.mark.parametrize("firsts", [[1], [0, 0], [0, 12], [0, 7, 5], [0, 13]])
def test_shards_begin_one_after_another(index: Index, firsts: list[int]) -> None:
    about, columns = index
    (shard,) = about["shards"]
    shards = [{**shard, "first": first} for first in firsts]
    assert is_refused({**about, "shards": shards}, columns)
    shards = [{**shard, "first": first} for first in (0, 5, 11)]
    assert not is_refused({**about, "shards": shards}, columns)


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "int64"), ("width", 0), ("height", 0), ("channels", 0)]
)
def test_images_that_no_scan_finds_are_refused(index: Index, field: str, value: Any) -> None:
    about, columns = index
    (kind,) = about["kinds"]
    kinds = [{**kind, "image": {**kind["image"], field: value}}]
    assert is_refused({**about, "kinds": kinds}, columns)


def test_packs_of_earlier_versions_are_read(index: Index) -> None:
    """They do not say which images are arrays."""
    about = {
        **index[0],
        "kinds": [{**kind, "image": {**kind["image"]}} for kind in index[0]["kinds"]],
    }
    for kind in about["kinds"]:
        del kind["image"]["is_array"]
    assert not is_refused(about, index[1])
