"""A set of pairs answers alike, whether its files are here, in storage or in a pack."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.checks.catalogue import masks_as
from tests.checks.test_check import collected, in_folder
from tests.conftest import data_flags, make_set
from tests.extras.packs.test_command import pack
from tests.object_store import put_folder
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import read_list
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.remote_pairs import RemotePairs
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url
from unet_ddp.extras.packs.pairs import PackedPairs, open_pack
from unet_ddp.extras.steps.shares import plan_shares
from unet_ddp.files import as_path
from unet_ddp.storage import storage_of


def read_files(pairs: Pairs) -> list[bytes]:
    found = []
    pairs.share()
    for row in range(len(pairs)):
        pair = pairs.to_read(row)
        pairs.fetch_ahead([pair.image, pair.mask])
        for path in (pair.image, pair.mask):
            with pairs.local(path) as local:
                found.append(local.read_bytes())
    pairs.fetch_ahead([])
    return found


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("names_groups", [True, False])
def test_all_kinds_of_sets_answer_alike(tmp_path: Path, names_groups: bool) -> None:
    images = sorted((make_set(tmp_path, 6) / "imgs").iterdir())
    rows = ["image,mask,group,split,source"]
    for k, image in enumerate(images):
        more = f'"{"ab"[k % 2] if k else ""}",{"train" if k % 3 else "val"},{"xy"[k // 3]}'
        rows.append(f"imgs/{image.name},masks/{image.name},{more if names_groups else ',,'}")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    config = DataConfig(pairs_file=str(tmp_path / "pairs.csv"))
    folder = pack(config, tmp_path / "pack").images
    assert folder is not None
    url = put_folder(tmp_path, Url("s3://bucket/kinds"))
    here = read_list(tmp_path / "pairs.csv")
    there = read_list(as_path(f"{url}/pairs.csv"))
    packed = open_pack(Path(folder))
    assert [type(pairs) for pairs in (here, there, packed)] == [Pairs, RemotePairs, PackedPairs]
    assert [pairs.storage for pairs in (here, there, packed)] == [None, storage_of(url), None]
    chosen = np.array([False, True, True, False, False, True])
    for pairs in (here, there, packed):
        groups, part = pairs.groups(), pairs.select(chosen)
        assert list(pairs.names()) == [f"imgs/{image.stem}" for image in images]
        assert list(groups or []) == (["imgs/ax", *"babab"] if names_groups else [])
        assert pairs.sides().tolist() == ([2, 1, 1, 2, 1, 1] if names_groups else [0] * 6)
        assert list(part.names()) == [pair.name for pair in pairs if pair in list(part)]
        assert Table(pairs, [], {}).rows_of(part).tolist() == [1, 2, 5] and len(pairs[4:]) == 2
        assert list(part.texts("source")) == (["x", "x", "y"] if names_groups else [""] * 3)
        assert [pair.source or "" for pair in part] == list(part.texts("source"))
        assert pairs[0].group is None and pairs[4:][1].name == pairs[5].name
        assert read_files(part) == read_files(here.select(chosen))
    assert here.scanned is None and there.scanned is None
    assert len(packed[:2].scanned.table.pairs) == 6


def test_a_pack_of_8_bit_may_be_read_with_other_channels_and_no_data(tmp_path: Path) -> None:
    """Its images have no statistics that depend on them; those of more bits have."""
    config = in_folder(make_set(tmp_path, 6))
    packed = open_pack(Path(str(pack(config, tmp_path / "pack").images)))
    for settings in ({"channels": 1}, {"nodata": 0.0}, {}):
        training, validation = packed.divide(replace(config, **settings))
        assert len(training) == 6 and validation is None


def test_a_pack_of_masks_in_colour_has_the_values_of_known_greys(tmp_path: Path) -> None:
    masks_as(lambda a: np.dstack([a] * 3))(make_set(tmp_path, 6))
    packed = pack(in_folder(tmp_path), tmp_path / "pack")
    report, data = collected(packed, labels=Labels((0, 255)))
    assert data is not None and data.values.values == [0, 255] and not report.problems


def test_shares_of_a_pack_are_those_of_its_list(tmp_path: Path) -> None:
    images = sorted((make_set(tmp_path, 6) / "imgs").iterdir())
    names = ["night", "", "street", "night", "street", "street"]
    rows = [f"imgs/{i.name},masks/{i.name},{name}" for i, name in zip(images, names, strict=True)]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,mask,source", *rows]))
    config = DataConfig(
        pairs_file=str(tmp_path / "pairs.csv"), shares=("street=0.5", "night=0.5"), validation=0
    )
    own = replace(pack(replace(config, shares=()), tmp_path / "pack"), shares=config.shares)
    own.check()
    chosen = np.array([True, False, True, True, True, True])
    table, orders = Table.from_scan([]), []
    for each, pairs in ((config, read_list(tmp_path / "pairs.csv")), (own, open_pack(Path(str(own.images))))):  # fmt: skip
        with pytest.raises(UserError, match=rf"bx\S+ has no source in {each.pairs_file or each.images}"):  # fmt: skip
            plan_shares(each, table, pairs)
        orders.append(plan_shares(each, table, pairs.select(chosen)))
    one, other = ([(s.name, s.rows.tolist()) for s in order.sources] for order in orders if order)
    assert one == other == [("street", [1, 3, 4]), ("night", [0, 2])]


def test_another_pack_at_the_same_place_has_other_stamps(tmp_path: Path) -> None:
    """Samples that are kept are of files with a stamp."""
    stamps = []
    for values in ((0, 255), (0, 255), (0, 1)):
        shutil.rmtree(tmp_path, ignore_errors=True)
        config = DataConfig(**dict(zip(("images", "masks"), data_flags(make_set(tmp_path, 2))[1::2], strict=True)))  # fmt: skip
        for mask in (tmp_path / "masks").iterdir():
            half = np.repeat(np.array(values, np.uint8), 16)
            Image.fromarray(np.tile(half, (24, 1))).save(mask)
        folder = pack(config, tmp_path / "pack").images
        stamps.append([pair.stamps for pair in open_pack(Path(folder))])
    assert stamps[0] == stamps[1] != stamps[2]
