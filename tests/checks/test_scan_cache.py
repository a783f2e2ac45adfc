"""The cache of what a scan found: a file is decoded again only if it has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.conftest import make_set
from tests.object_store import MemoryBucket, put_folder
from unet_ddp.checks import scan as module
from unet_ddp.checks import scan_cache
from unet_ddp.checks.scan import scan
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers.read import Source
from unet_ddp.extras.cloud import Url, put
from unet_ddp.files import cache_folder


@pytest.fixture(autouse=True)
def _no_cache_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "usable_cores", lambda **_: 1)


def found_pairs(folder: Path) -> Pairs:
    return find_pairs(folder / "imgs", folder / "masks")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are decoded."""
    names: list[str] = []

    def watched(read: Any) -> Any:
        def watch(source: Source, *options: Any) -> Any:
            names.append(f"{source.path.parent.name}/{source.path.name}")
            return read(source, *options)

        return watch

    for name in ("read_image_metadata", "read_mask_metadata"):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    return names


def test_a_file_is_decoded_again_only_if_it_has_changed(tmp_path: Path, reads: list[str]) -> None:
    for name in ("x", "y"):
        picture = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8))
        picture.putpalette([1, 2, 3, 4, 5, 6])
        for side in ("imgs", "masks"):
            (tmp_path / side).mkdir(exist_ok=True)
            picture.save(tmp_path / side / f"{name}.png")
    tifffile.imwrite(tmp_path / "imgs" / "x.tif", np.array([[1, 2], [3, 4]], np.uint16))
    (tmp_path / "imgs" / "x.png").unlink()
    pairs = found_pairs(tmp_path)
    first = scan(pairs)
    assert sorted(reads) == ["imgs/x.tif", "imgs/y.png", "masks/x.png", "masks/y.png"]
    again = scan(pairs)
    assert again == first and len(reads) == 4
    assert {type(v) for v in (*again[0][0].image[1:], *again[0][0].mask)} == {
        type(v) for v in (*first[0][0].image[1:], *first[0][0].mask)
    }
    masks = [scanned.mask.header for scanned in (*first[0], *again[0])]
    assert masks[0] is masks[1] and masks[2] is masks[3]  # a palette is kept once
    reads.clear()
    os.utime(pairs[0].mask, ns=(1, 1))  # as large, at another time
    image = pairs[1].image
    status = image.stat()
    image.write_bytes(image.read_bytes() + b" ")  # at the same time, larger
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    third = scan(pairs)
    assert sorted(reads) == ["imgs/y.png", "masks/x.png"]
    assert third[0][0].mask.values == (0, 1)
    assert scan(pairs) == third and len(reads) == 2


def test_statistics_are_kept_for_the_options_they_are_of(tmp_path: Path, reads: list[str]) -> None:
    make_set(tmp_path, 1)
    pairs = found_pairs(tmp_path)
    for options in ({}, {"nodata": 3.0}, {"channels": 3}, {"nodata": 3.0, "channels": 3}):
        scan(pairs, **options)
        scan(pairs, **options)
    assert reads.count("imgs/ax.png") == 4


def test_one_file_may_be_image_and_mask(tmp_path: Path, reads: list[str]) -> None:
    make_set(tmp_path, 1)
    path = tmp_path / "masks" / "ax.png"
    pairs = Pairs([Pair("a", path, path)])
    first = scan(pairs)
    assert scan(pairs) == first and len(reads) == 2
    assert first[0][0].mask.values == (0, 255)


def test_errors_are_not_kept(tmp_path: Path) -> None:
    pairs = found_pairs(make_set(tmp_path, 1))
    data = pairs[0].image.read_bytes()
    pairs[0].image.write_bytes(b"")
    assert scan(pairs)[1]
    pairs[0].image.write_bytes(data)
    assert not scan(pairs)[1]
    pairs[0].image.unlink()
    assert "not found" in scan(pairs)[1]["ax"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"headers": [], "entries": {"mask a": [0]}}', "\udcff", "[" * 9999,
        "9" * 5000, "text", "number", "null", "nan",
    ],
)  # fmt: skip
def test_a_damaged_cache_is_not_used(tmp_path: Path, reads: list[str], text: str) -> None:
    pairs = found_pairs(make_set(tmp_path, 1))
    first = scan(pairs)
    (path,) = cache_folder().iterdir()
    assert json.loads(path.read_text().split("\n", 1)[1])["entries"].keys() == {
        f"image {pairs[0].image}", f"mask {pairs[0].mask}",
    }  # fmt: skip
    whole = path.read_text()
    if text == "text":  # in place of what it has
        text = whole.replace("255", '"x"')
    elif text == "number":
        text = whole.replace("[[", "[7, [")
    elif text in ("null", "nan"):
        text = whole.replace("uint8", text).replace("1,", f"{text},")
    assert text != whole
    path.write_text(text, errors="surrogateescape")
    assert scan(pairs) == first and len(reads) == 4
    assert scan(pairs) == first and len(reads) == 4


def test_a_pipe_in_the_place_of_the_cache_is_not_waited_for(tmp_path: Path) -> None:
    pairs = found_pairs(make_set(tmp_path, 1))
    first = scan(pairs)
    (path,) = cache_folder().iterdir()
    path.unlink()
    os.mkfifo(path)
    assert scan(pairs) == first and path.is_file()


def test_a_cache_that_can_not_be_written_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(make_set(tmp_path, 1) / "imgs" / "ax.png"))
    assert len(scan(found_pairs(tmp_path))[0]) == 1


def test_a_cache_of_others_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pairs = found_pairs(make_set(tmp_path, 1))
    first = scan(pairs)
    (tmp_path / "unet_ddp").chmod(0o777)
    assert scan(pairs) == first and len(reads) == 4


def test_a_scan_that_is_interrupted_keeps_what_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    pairs = found_pairs(make_set(tmp_path, 6))

    def interrupted(items: Iterable[Any], *args: Any, **how: Any) -> Iterable[Any]:
        for count, item in enumerate(items):
            if count == 5:
                raise KeyboardInterrupt
            yield item

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "tqdm", interrupted)
        scan(pairs)
    begun = len(reads)
    assert 5 <= begun < 12
    scan(pairs)
    assert len(reads) == 12


@pytest.mark.parametrize(("seconds", "saves"), [(0.0, 3), (1000.0, 1)])
def test_a_long_scan_is_saved_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, saves: int
) -> None:
    """A kill leaves no time to."""
    monkeypatch.setattr(module, "CHUNK", 2)
    monkeypatch.setattr(scan_cache, "SAVE_EVERY", seconds)
    written: list[int] = []
    monkeypatch.setattr(
        scan_cache,
        "write_text",
        lambda path, text: written.append(len(json.loads(text.split("\n", 1)[1])["entries"])),
    )
    scan(found_pairs(make_set(tmp_path, 3)))
    assert written == [2, 4, 6][-saves:]


def test_objects_are_fetched_once_and_known_again(
    tmp_path: Path, memory_store: MemoryBucket
) -> None:
    make_set(tmp_path / "set", 12)
    (tmp_path / "set" / "imgs" / "bx.png").write_bytes(b"")
    url = put_folder(tmp_path / "set", Url("s3://bucket/scan"))
    pairs = find_pairs(url / "imgs", url / "masks")
    before = memory_store.count_requests()
    first = scan(pairs)
    assert memory_store.count_requests() == before + 24
    assert first[1] == {"bx": f"{url}/imgs/bx.png: is empty (0 bytes); replace or remove it"}
    local = scan(Pairs(pair for pair in found_pairs(tmp_path / "set") if pair.name != "bx"))
    assert [pair.mask._replace(stamp=(0, 0)) for pair in first[0]] == [
        pair.mask._replace(stamp=(0, 0)) for pair in local[0]
    ]
    assert [pair.image.stamp for pair in first[0]] == [pair.pair.stamps[0] for pair in first[0]]
    before = memory_store.count_requests()
    assert scan(pairs)[0] == first[0]
    assert memory_store.count_requests() == before + 1  # the one that can't be read
    put(url / "masks" / "ax.png", (tmp_path / "set" / "masks" / "cx.png").read_bytes())
    again = scan(find_pairs(url / "imgs", url / "masks"))
    assert again[0][0].mask.counts == first[0][1].mask.counts
