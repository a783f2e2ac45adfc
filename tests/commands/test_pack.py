"""A pack is the same data set as the files that it was made of."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.data.checks.catalogue import CASES
from tests.data.checks.catalogue import make_case as make_case_in
from tests.data.checks.test_catalogue import NAMES, parse
from unet_ddp.commands.pack import write_pack
from unet_ddp.config import DataConfig
from unet_ddp.data.checks.check import PreparedData, check_dataset, prepare_data
from unet_ddp.data.checks.summary import Report
from unet_ddp.errors import UserError


def pack(config: DataConfig, output: Path) -> DataConfig:
    """Pack a data set and return what trains on the pack."""
    data = check_dataset(config, Report(), seed=0)
    assert data is not None
    output.mkdir(exist_ok=True)
    write_pack(output, data, config)
    return packed(config, output)


def packed(config: DataConfig, output: Path | str) -> DataConfig:
    gone = dict.fromkeys(("masks", "pairs_file", "val_images", "val_masks"))
    return replace(config, images=str(output), **gone)


def describe(data: PreparedData) -> dict[str, Any]:
    """All that is known of a data set but where its files are."""
    notes = [re.sub(r"\S*/\S+", "FILE", note) for note in data.notes]
    sides = data.split.training, data.split.validation
    return {
        **vars(data),
        "notes": [note for note in notes if "without image" not in note and "no data:" not in note],
        "split": (data.split.how, data.split.fingerprint),
        "pairs": [[(pair.name, pair.group, pair.side) for pair in side] for side in sides],
        "groups": None,
    }


def in_folder(folder: Path, **flags: Any) -> DataConfig:
    return DataConfig(images=str(folder / "imgs"), masks=str(folder / "masks"), **flags)


@pytest.mark.filterwarnings("ignore:Image size")  # as by data/formats, which pytest undoes
@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_a_pack_of_any_data_set_is_that_data_set(tmp_path: Path, number: int) -> None:
    """Of every case of the catalogue that can be trained on, with no bad file left out."""
    config = parse(make_case_in(number, tmp_path), tmp_path).data
    try:
        expected = prepare_data(config, seed=0)
    except UserError:
        return
    own = pack(config, tmp_path / "pack")
    assert describe(prepare_data(own, seed=0)) == describe(expected)
    data = check_dataset(own, Report(), seed=0)
    assert data is not None
    for side in (expected.split.training, expected.split.validation):
        for pair in side:
            (same,) = [other for other in data.table.pairs if other.name == pair.name]
            for path, other in ((pair.image, same.image), (pair.mask, same.mask)):
                assert read(other) == path.read_bytes(), other


def read(path: Path) -> bytes:
    """Read a part of a shard by the numbers in its name."""
    found = re.fullmatch(r"(.+\.tar)#(\d+)\+(\d+)/[^/]+", str(path))
    assert found is not None, path
    content = Path(found[1]).read_bytes()
    return content[int(found[2]) : int(found[2]) + int(found[3])]
