"""Metadata of files."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.conftest import make_set
from tests.object_store import ObjectStore, put_folder
from unet_ddp.checks import scan as module
from unet_ddp.checks.scan import read_image_metadata, read_mask_metadata, scan
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.base import Header
from unet_ddp.data.readers.read import Source
from unet_ddp.extras.cloud import StorageError, Url


@pytest.fixture(autouse=True)
def _no_cache_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "usable_cores", lambda **_: 1)


def found_pairs(folder: Path) -> Pairs:
    return find_pairs(folder / "imgs", folder / "masks")


# -- one file ------------------------------------------------------------------------------


def thumbnail(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(8, 8)


def test_an_8_bit_image_has_a_thumbnail_and_no_statistics(tmp_path: Path) -> None:
    blocks = np.arange(64, dtype=np.uint8).reshape(8, 8) + 10
    Image.fromarray(np.kron(blocks, np.ones((3, 5), np.uint8))).save(tmp_path / "x.png")
    metadata = read_image_metadata(Source(tmp_path / "x.png"))
    assert metadata.header == Header(40, 24, 1, "uint8")
    assert (thumbnail(metadata.thumbnail) == np.round((blocks - 10) * (255 / 63))).all()
    assert metadata[3:] == (0, 0.0, 0.0, (), (), None)
    status = (tmp_path / "x.png").stat()
    assert metadata.stamp == (status.st_size, status.st_mtime_ns)
    Image.new("L", (9, 9), 7).save(tmp_path / "y.png")
    assert read_image_metadata(Source(tmp_path / "y.png")).thumbnail == ""


def test_an_object_s_stamp_is_that_of_its_listing(tmp_path: Path) -> None:
    """Its copy on this machine has another, by which the next scan would not know it."""
    pair = found_pairs(make_set(tmp_path, 1))[0]
    (found,), _ = scan(Pairs([replace(pair, stamps=((7, 1), (8, 2)))]))
    assert (found.image.stamp, found.mask.stamp) == ((7, 1), (8, 2))


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
def test_statistics_are_of_each_channel(
    tmp_path: Path, rng: np.random.Generator, dtype: str
) -> None:
    pixels = rng.integers(-90 if dtype != "uint16" else 0, 300, (9, 11, 3)).astype(dtype)
    tifffile.imwrite(tmp_path / "x.tif", pixels, photometric="minisblack", planarconfig="contig")
    metadata = read_image_metadata(Source(tmp_path / "x.tif"))
    assert metadata.num_pixels == 99
    assert (metadata.low, metadata.high) == (pixels.min(), pixels.max())
    wide = pixels.astype(np.float64)
    assert metadata.sums == pytest.approx(wide.sum((0, 1)))
    assert metadata.squares == pytest.approx((wide**2).sum((0, 1)))
    shown = thumbnail(metadata.thumbnail)
    assert shown.min() == 0 and shown.max() == 255


@pytest.mark.parametrize("tag", [True, False])
def test_pixels_without_data_are_in_no_statistics(tmp_path: Path, tag: bool) -> None:
    pixels = np.array([[1, -9], [3, 5]], np.int16)
    tags = [(42113, 2, 0, "-9", True)] if tag else None
    tifffile.imwrite(tmp_path / "x.tif", pixels, extratags=tags)
    metadata = read_image_metadata(Source(tmp_path / "x.tif"), None if tag else -9)
    assert metadata.header.nodata == (-9 if tag else None)
    assert metadata[3:] == (3, 1.0, 5.0, (9.0,), (35.0,), None)
    metadata = read_image_metadata(Source(tmp_path / "x.tif"), 3)  # the flag before the file's own
    assert metadata[3:] == (3, -9.0, 5.0, (-3.0,), (107.0,), None)
    tifffile.imwrite(tmp_path / "y.tif", np.full((2, 2), -9, np.int16))
    assert read_image_metadata(Source(tmp_path / "y.tif"), -9)[3:] == (0, 0.0, 0.0, (), (), None)


@pytest.mark.parametrize(("channels", "expected"), [(None, 3), (3, 3), (4, 4), (5, 3)])
def test_alpha_is_measured_if_it_is_asked_for(
    tmp_path: Path, channels: int | None, expected: int
) -> None:
    pixels = np.arange(64, dtype=np.uint16).reshape(4, 4, 4)
    tifffile.imwrite(tmp_path / "x.tif", pixels, photometric="rgb", extrasamples=["unassalpha"])
    metadata = read_image_metadata(Source(tmp_path / "x.tif"), None, channels)
    assert metadata.header.has_alpha and len(metadata.sums) == expected
    assert metadata.sums == tuple(pixels[..., :expected].sum((0, 1)))


@pytest.mark.parametrize("first", [0, -3, 65535])
def test_values_of_a_mask_are_counted(tmp_path: Path, first: int) -> None:
    """Also those that are negative, or need more than 16 bits."""
    codes = np.array([[first + 5, first, first], [first + 1, first, first + 5]], np.int32)
    np.save(tmp_path / "x.npy", codes)
    metadata = read_mask_metadata(Source(tmp_path / "x.npy"))
    assert metadata.values == (first, first + 1, first + 5) and metadata.counts == (3, 1, 2)
    assert not metadata.header.has_colour_values


def test_a_mask_of_too_many_values_keeps_the_commonest_and_the_ends(tmp_path: Path) -> None:
    codes = np.arange(40 * 50, dtype=np.int32).reshape(40, 50)
    codes[1::2] = codes[::2]  # even rows twice
    codes.flat[-1] = 5000
    np.save(tmp_path / "x.npy", codes)
    metadata = read_mask_metadata(Source(tmp_path / "x.npy"))  # 1001 values: all are kept
    assert len(metadata.values) == 1001 and metadata.values[-1] == 5000
    np.save(tmp_path / "x.npy", np.arange(2000, dtype=np.int32).repeat(2)[1:-1].reshape(2, -1))
    metadata = read_mask_metadata(Source(tmp_path / "x.npy"))
    assert metadata.values == (0, *range(1, 1023), 1999)
    assert metadata.counts == (1, *[2] * 1022, 1)


# -- all files -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_the_scan_of_all_files_is_that_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """By a thread for each core; the bar is for a terminal alone, and gone at the end."""
    monkeypatch.setattr(module, "CHUNK", 2)
    pairs = found_pairs(make_set(tmp_path, 11))
    seen: list[Any] = []
    threads: list[int] = []

    def shown(items: Iterable[Any], text: str, total: int, **how: Any) -> Iterable[Any]:
        assert total == 22 and how["leave"] is False and how["disable"] is None
        for item in items:
            seen.append(item)
            yield item

    monkeypatch.setattr(module, "tqdm", shown)
    monkeypatch.setattr(module, "usable_cores", lambda **_: workers)
    monkeypatch.setattr(
        module, "ThreadPoolExecutor", lambda n: threads.append(n) or ThreadPoolExecutor(n)
    )
    result = scan(pairs)
    assert threads == [workers]
    assert len(seen) == 22 and result[1] == {}
    assert result[0] == [
        (pair, read_image_metadata(Source(pair.image)), read_mask_metadata(Source(pair.mask)))
        for pair in pairs
    ]


def test_all_errors_are_collected_by_pair(tmp_path: Path) -> None:
    pairs = found_pairs(make_set(tmp_path, 4))
    pairs[1].image.write_bytes(b"")
    pairs[2].image.unlink()
    pairs[2].mask.write_bytes(b"")
    result = scan(pairs)
    assert [scanned.pair.name for scanned in result[0]] == ["ax", "dx"]
    assert result[1] == {
        "bx": f"{pairs[1].image}: is empty (0 bytes); replace or remove it",
        "cx": f"{pairs[2].image}: not found; {pairs[2].mask}: is empty (0 bytes); replace or remove it",
    }


def test_statistics_take_no_copy_of_eight_bytes_for_each_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.arange(500 * 400 * 3, dtype=np.uint16).reshape(500, 400, 3)
    np.save(tmp_path / "x.npy", pixels)
    whole = read_image_metadata(Source(tmp_path / "x.npy"))
    assert whole.sums == tuple(pixels.reshape(-1, 3).sum(axis=0, dtype=np.float64))
    assert whole.squares == tuple((pixels.reshape(-1, 3).astype(float) ** 2).sum(axis=0))
    monkeypatch.setattr(module, "AT_ONCE", 10_000)
    tracemalloc.start()
    assert read_image_metadata(Source(tmp_path / "x.npy")) == whole
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * pixels.nbytes  # in one piece 9 times


# -- object storage ------------------------------------------------------------------------


def test_storage_that_refuses_ends_the_scan(tmp_path: Path, object_store: ObjectStore) -> None:
    url = put_folder(make_set(tmp_path / "set", 2), Url("s3://bucket/refused"))
    pairs = find_pairs(url / "imgs", url / "masks")
    object_store.set_fault("denied")
    with pytest.raises(StorageError, match=r"refused/.*: access is denied; set AWS_ACCESS_KEY_ID"):
        scan(pairs)
