"""benchmarks.reading reads as train.py does, in each of its ways."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reading import ways_to_read
from tests.conftest import make_set
from unet_ddp.config import DataConfig


def test_each_way_reads_all_pairs(tmp_path: Path) -> None:
    images = make_set(tmp_path, 3, size=(32, 32))
    config = DataConfig(images=str(images / "imgs"), masks=str(images / "masks"))
    pairs, ways = ways_to_read(config, 0.5)
    assert pairs == 3
    read = {name: way() for name, way in ways.items()}
    assert {len(samples) for samples in read.values()} == {3}  # type: ignore[arg-type]
