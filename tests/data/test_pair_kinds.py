"""Each kind of data set claims its own places; what is expensive is imported for the one that does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import make_set
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import DataPaths, Pairs, list_kinds
from unet_ddp.files import as_path

HEAVY = (
    "unet_ddp.data.remote_pairs", "unet_ddp.extras.cloud", "unet_ddp.extras.packs.pairs",
    "unet_ddp.extras.overlap.folders", "unet_ddp.extras.arrays.items",
)  # fmt: skip


def claims(places: DataPaths) -> str:
    """Return the name of the kind that claims the places."""
    return next(type(kind).__name__ for kind in list_kinds() if kind.claims(places))


def test_each_kind_claims_its_own_places(tmp_path: Path) -> None:
    make_set(tmp_path, 2)
    (tmp_path / "classes" / "car").mkdir(parents=True)
    images, masks, classes = (tmp_path / name for name in ("imgs", "masks", "classes"))
    assert claims(DataPaths(images)) == claims(DataPaths(as_path("s3://bucket/pack"))) == "PackKind"
    assert claims(DataPaths(Path("my_data:cells"))) == "ItemKind"
    assert (
        claims(DataPaths(Path("my.data:images"), Path("my.data:masks"), planes=True)) == "ItemKind"
    )
    assert claims(DataPaths(listed=tmp_path / "list.csv")) == "PairList"
    assert claims(DataPaths(images, masks, planes=True)) == "Folders"
    assert claims(DataPaths(images, classes, planes=True)) == "ClassFolders"
    assert claims(DataPaths(images, classes)) == "Folders"
    assert claims(DataPaths(classes / "car", classes, planes=True)) == "Folders"
    assert claims(DataPaths(images, tmp_path / "none", planes=True)) == "Folders"
    for both in ((as_path("s3://bucket/i"), classes), (images, as_path("gs://bucket/m"))):
        assert claims(DataPaths(*both, planes=True)) == "Folders"


def test_folders_of_this_machine_import_no_other_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_set(tmp_path, 2)
    for name in [name for name in sys.modules if name.startswith(HEAVY)]:
        monkeypatch.delitem(sys.modules, name)
    pairs = find_pairs(tmp_path / "imgs", tmp_path / "masks", planes=True)
    assert type(pairs) is type(pairs[:1]) is Pairs
    assert [name for name in sys.modules if name.startswith(HEAVY)] == []
