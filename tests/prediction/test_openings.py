"""How often the libraries open one file: to be predicted, and for a training sample."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile

from tests.maps import rasterio, write_map
from tests.object_store import MemoryBucket
from tests.prediction.models import noise, write_photo
from tests.prediction.test_predict import run
from unet_ddp.data.dataset import Sample, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers import base
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import Source
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, put
from unet_ddp.prediction import source

ALL = ("--overlay", "--polygons", "o.geojson", "--probabilities", "npy")
READERS = ((PIL.Image, "open"), (tifffile, "TiffFile"), (rasterio, "open"), (np, "load"))


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """By name, how often a library opened a file."""
    counts = Counter[str]()

    def wrap(real: Any) -> Any:
        def count(file: Any, *args: Any, **how: Any) -> Any:
            counts[Path(str(getattr(file, "name", file))).name] += 1
            return real(file, *args, **how)

        return count

    for module, name in READERS:
        monkeypatch.setattr(module, name, wrap(getattr(module, name)))
    return counts


@pytest.mark.parametrize("flags", [(), ("--overlay",), ALL], ids=len)
@pytest.mark.parametrize("streamed", [1, 1 << 24], ids=["large", "small"])
def test_a_map_is_opened_once_whatever_the_outputs(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    openings: Counter[str],
    streamed: int,
    flags: tuple[str, ...],
) -> None:
    """In windows, if it is large: they are predicted again for each output."""
    monkeypatch.setattr(source, "STREAMED", streamed)
    write_map(here / "a.tif", noise(120, 90), nodata=0)
    openings.clear()
    tile = ("--tile", "32") if streamed == 1 else ()
    assert run("a.tif", *flags, *tile) == 0
    assert openings["a.tif"] == 1


@pytest.mark.parametrize(("flags", "most"), [((), 1), (("--overlay",), 2)])
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
def test_a_photo_is_opened_once_and_again_for_its_overlay(
    here: Path, openings: Counter[str], name: str, flags: tuple[str, ...], most: int
) -> None:
    """An overlay is decoded at full size."""
    write_photo(here / name)
    assert run(name, *flags) == 0
    assert openings[name] == most


@pytest.mark.parametrize("resolution", [None, 0.5])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_a_training_sample_opens_its_image_twice_at_most(
    tmp_path: Path, openings: Counter[str], dtype: str, resolution: float | None
) -> None:
    pair = Pair("a", tmp_path / "image.tif", tmp_path / "mask.png")
    write_map(pair.image, noise(40, 30).astype(dtype))
    PIL.Image.fromarray(noise(40, 30)[..., 0] // 128 * 255).save(pair.mask)
    wanted = ImageFormat(3, dtype, ground_resolution=resolution)
    openings.clear()
    assert isinstance(
        SegmentationDataset(Pairs([pair]), Labels((0, 255)), wanted, scale=0.5)[0, 0], Sample
    )
    assert openings["image.tif"] <= 2 and openings["mask.png"] == 1


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_an_object_is_fetched_once(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write_photo(tmp_path / name)
    url = Url(f"s3://bucket/openings/{name}")
    put(url, tmp_path / name)
    before = memory_store.count_requests()
    with Source(url) as file:
        assert file.place is None and file.header.channels == 3
        assert np.array_equal(file.image(ImageFormat(3))[0], file.image(ImageFormat(3))[0])
        assert file.thumbnail(8).shape == (8, 8)
    assert not list(tmp_path.glob("unet_ddp-*"))
    assert memory_store.count_requests() == before + 1


def test_a_small_map_that_is_a_bomb_is_not_read_by_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GDAL has it open for its place; the reader of whole images says what is wrong."""
    path = write_map(tmp_path / "a.tif", np.zeros((64, 64, 3), np.uint8), compress="deflate")
    with Source(path) as opened:
        assert (
            opened.place is not None and opened.rows(ImageFormat(3), at_least=1 << 24) is not None
        )
        monkeypatch.setattr(base, "MOST_BYTES", 64 * 64)
        monkeypatch.setattr(base, "MOST_RATIO", 1)
        assert opened.rows(ImageFormat(3), at_least=1 << 24) is None
        with pytest.raises(UserError, match="64x64 pixels of 3 bytes in a small file: too large"):
            opened.image(ImageFormat(3))
        rows = opened.rows(ImageFormat(3), at_least=1)  # a scene, which windows of it are read of
        assert rows is not None and rows.read(0, 8).shape == (8, 64, 3)
        with pytest.raises(UserError, match="64x64 pixels of 3 bytes in a small file: too large"):
            rows.read(0, 64)
