"""Images that are on both sides of the split."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from tests.checks.test_rules import scanned
from unet_ddp.checks import near_duplicates
from unet_ddp.checks.near_duplicates import find_copies
from unet_ddp.checks.scan import read_image_metadata
from unet_ddp.checks.table import Table
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.read import Source
from unet_ddp.data.splits import Split


def as_text(grey: np.ndarray) -> str:
    return base64.b64encode(grey.astype(np.uint8).tobytes()).decode()


def test_copies_across_the_split_are_found(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_duplicates, "AT_ONCE", 7)
    looks = rng.integers(0, 256, (7, 64))
    darker = looks[2] * 0.5 + 3  # correlation 1, but for rounding
    other = looks[3].copy()
    other[:12] = 255 - other[:12]
    thumbnails = {
        "t0": looks[0], "t1": looks[1], "t2": looks[2], "t3": looks[3],
        "v4": looks[4], "v1": looks[1], "v3": other, "v2": darker, "v5": 255 - looks[0],
    }  # fmt: skip
    pairs = [scanned(name, thumbnail=as_text(grey)) for name, grey in thumbnails.items()]
    pairs += [scanned("t9", thumbnail=""), scanned("v9", thumbnail="")]  # of one colour: unknown
    training, validation = (
        [p.pair for p in pairs if p.pair.name.startswith(side)] for side in "tv"
    )
    found = find_copies(Table.from_scan(pairs), Split(Pairs(training), Pairs(validation), ""))
    assert [(one.name, other.name) for one, other in found] == [("v1", "t1"), ("v2", "t2")]
    for split in (Split(Pairs(training), Pairs(), ""), Split(Pairs(), Pairs(validation), "")):
        assert find_copies(Table.from_scan(pairs), split) == []


@pytest.mark.parametrize(("correlation", "is_copy"), [(0.9953, True), (0.9947, False)])
def test_what_counts_as_a_copy(correlation: float, is_copy: bool) -> None:
    look, noise = np.random.default_rng(0).normal(size=(2, 64))
    look = (look - look.mean()) / look.std()
    noise -= noise.mean() + look * (noise @ look) / 64  # uncorrelated with it
    mixed = correlation * look + np.sqrt(1 - correlation**2) * noise / noise.std()
    pairs = [
        scanned(name, thumbnail=as_text(np.round(127 + 40 * grey)))
        for name, grey in (("t", look), ("v", mixed))
    ]
    split = Split(Pairs([pairs[0].pair]), Pairs([pairs[1].pair]), "")
    assert bool(find_copies(Table.from_scan(pairs), split)) == is_copy


def test_an_edge_without_data_makes_no_images_alike(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Elevations of two places, in tiles that end at the same sea."""
    pairs = []
    for name in "tv":
        place = np.kron(rng.uniform(1000, 1010, (8, 8)), np.ones((4, 4))).astype(np.float32)
        place[:12] = -9999
        np.save(tmp_path / "x.npy", place)
        metadata = read_image_metadata(Source(tmp_path / "x.npy"), nodata=-9999)
        pairs.append(scanned(name, thumbnail=metadata.thumbnail))
    split = Split(Pairs([pairs[0].pair]), Pairs([pairs[1].pair]), "")
    assert find_copies(Table.from_scan(pairs), split) == []
