"""Images that are on both sides of the split."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.checks.test_rules import scanned
from unet_ddp.checks import near_duplicates
from unet_ddp.checks.near_duplicates import Copies, confirm, find_copies
from unet_ddp.checks.scan import read_image_metadata
from unet_ddp.checks.table import Table
from unet_ddp.data.pairs import Pair, Pairs
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


def draw_square(rng: np.random.Generator) -> np.ndarray:
    """Return an image of noise with a square at the place of all others, or half a pixel beside it."""
    image = rng.integers(0, 60, (64, 64), np.uint8)
    image[20:44, 20:44] = rng.integers(150, 200)
    return image


def split_of(folder: Path, training: list[np.ndarray], validation: list[np.ndarray]) -> Split:
    sides = []
    for side, images in (("t", training), ("v", validation)):
        pairs = []
        for k, image in enumerate(images):
            path = folder / f"{side}{k}.png"
            Image.fromarray(image).save(path)
            pairs.append(Pair(f"{side}{k}", path, path))
        sides.append(Pairs(pairs))
    return Split(*sides, "")


def copies_of(split: Split) -> Copies:
    """Return what is found in files, thumbnails first."""
    pairs = []
    for pair in (*split.training, *split.validation):
        metadata = read_image_metadata(Source(pair.image))
        pairs.append(scanned(pair.name, thumbnail=metadata.thumbnail)._replace(pair=pair))
    found = find_copies(Table.from_scan(pairs), split)
    assert found is not None and len(found) == len(split.validation)  # all thumbnails are alike
    return confirm(found, split)


def test_drawings_with_one_thumbnail_are_no_copies(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """In a large set of simple images, many thumbnails are alike by chance."""
    training = [draw_square(rng) for _ in range(8)]
    found = copies_of(split_of(tmp_path, training, [draw_square(rng) for _ in range(4)]))
    assert found == ([], 0, True)
    again = copies_of(split_of(tmp_path, training, [training[3], draw_square(rng)]))
    assert [one.name for one, _ in again.examples] == ["v0"] and again.total == 1


@pytest.mark.parametrize("how", ["smaller", "larger", "compressed", "darker"])
def test_changed_copies_of_a_photo_are_copies(
    tmp_path: Path, rng: np.random.Generator, how: str
) -> None:
    coarse = Image.fromarray(rng.integers(0, 256, (14, 20, 3), np.uint8))
    photo = coarse.resize((300, 200), Image.Resampling.BICUBIC)
    photo = Image.fromarray(np.asarray(photo) // 2 + rng.integers(0, 60, (200, 300, 3), np.uint8))
    copy = {
        "smaller": photo.resize((130, 90), Image.Resampling.LANCZOS),
        "larger": photo.resize((450, 300), Image.Resampling.BILINEAR),
        "darker": photo.point(lambda value: value * 0.7),
    }.get(how, photo)
    if how == "compressed":
        copy.save(tmp_path / "x.jpg", quality=25)
        copy = Image.open(tmp_path / "x.jpg")
    found = copies_of(split_of(tmp_path, [np.asarray(photo)], [np.asarray(copy)]))
    assert found.total == 1


def test_some_of_many_are_looked_at_and_what_can_t_be_read_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(near_duplicates, "MOST_LOOKED_AT", 3)
    image = draw_square(rng)
    split = split_of(tmp_path, [image], [image, draw_square(rng)] * 4)
    found = [(pair, split.training[0]) for pair in split.validation]
    assert [one.name for one, _ in confirm(found, split).examples] == ["v0", "v6"]
    assert confirm(found, split)[1:] == (round(8 * 2 / 3), False)
    (tmp_path / "v3.png").write_bytes(b"")
    assert [one.name for one, _ in confirm(found, split).examples] == ["v0", "v3", "v6"]
