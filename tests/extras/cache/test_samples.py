"""Cached samples are bit by bit what was decoded, whatever happens to their files."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_set
from tests.ranks import Ranks
from tests.test_resume import assert_same_state, last, train
from unet_ddp.data import dataset
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.memory import UNUSED_DAYS
from unet_ddp.data.pairs import Pair
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.extras.cache import samples as module
from unet_ddp.extras.cache.samples import Arrays, SampleCache
from unet_ddp.files import cache_folder

LABELS, COLOUR = Labels((0, 255)), ImageFormat(3)
DAY = 86400
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "unet_ddp" / "samples"


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return find_pairs(*(make_set(tmp_path, 1) / name for name in ("imgs", "masks")))[0]


def make(
    labels: Labels = LABELS, image_format: ImageFormat = COLOUR, **options: object
) -> SampleCache:
    folder = cache_folder()
    assert folder is not None
    return SampleCache(
        folder,
        labels,
        image_format,
        **{"scale": 1.0, "resize_masks": False, **options},  # type: ignore[arg-type]
    )


def arrays(image_format: ImageFormat = COLOUR, value: int = 0) -> Arrays:
    """A sample of 5x7 pixels."""
    shape = (5, 7, image_format.channels)
    image = np.arange(np.prod(shape)).reshape(shape).astype(image_format.dtype) + value
    return image, np.arange(35, dtype=np.uint8).reshape(5, 7) % 2


def decode(pair: Pair) -> Arrays:
    return arrays()


def never(pair: Pair) -> Arrays:
    raise AssertionError("decoded")


def is_same(one: Arrays, other: Arrays) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "image_format", [COLOUR, ImageFormat(2, "int16"), ImageFormat(130, "float32")]
)
def test_a_sample_is_decoded_once_by_all_processes(pair: Pair, image_format: ImageFormat) -> None:
    decoded = arrays(image_format)
    flipped = decoded[0][::-1], decoded[1][::-1]  # not contiguous
    cache = make(image_format=image_format)
    assert is_same(cache.load(0, pair, lambda pair: flipped), flipped)
    for other in (cache, make(image_format=image_format), pickle.loads(pickle.dumps(cache))):
        image, ids = found = other.load(0, pair, never)
        assert is_same(found, flipped) and image.shape == (5, 7, image_format.channels)
        image[:], ids[:] = 1, 1  # who changes a sample changes none of the cache


def test_a_dataset_reads_the_same_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = find_pairs(*(make_set(tmp_path, 3, size=(24, 40)) / name for name in ("imgs", "masks")))
    plain, cached, again = (
        SegmentationDataset(pairs, LABELS, COLOUR, scale=0.5, store=cache)
        for cache in (None, make(scale=0.5), make(scale=0.5))
    )
    expected = [plain[0, index] for index in range(3)]
    for data in (cached, again):
        for index, sample in enumerate(expected):
            for one, other in zip(data[0, index], sample, strict=True):
                assert torch.equal(one, other)
        monkeypatch.setattr(dataset, "Source", None)  # no file is opened again


def test_the_name_changes_with_every_option_and_file(pair: Pair, tmp_path: Path) -> None:
    caches = [
        make(), make(Labels((255, 0))), make(image_format=ImageFormat(3, "uint16")), make(scale=0.5),
        make(resize_masks=True),
    ]  # fmt: skip
    names = [cache.path(pair) for cache in caches]
    names.append(caches[0].path(replace(pair, image=pair.mask, mask=pair.image)))
    other = tmp_path / "other.png"
    shutil.copy2(pair.image, other)
    names.append(caches[0].path(replace(pair, image=other)))
    for path in (pair.image, pair.mask):
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        names.append(caches[0].path(pair))
        path.write_bytes(path.read_bytes() + b"x")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        names.append(caches[0].path(pair))
    assert len(set(names)) == len(names) == 11


@pytest.mark.parametrize("suffix", [".image", ".truth"])
def test_another_reader_of_images_or_of_masks_is_another_name(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Readers of a user's own, whose text is part of the name."""
    moved = Pair("x", pair.image.with_suffix(".image"), pair.mask.with_suffix(".truth"))
    for old, new in ((pair.image, moved.image), (pair.mask, moved.mask)):
        shutil.copy2(old, new)
    described = {path: path.suffix for path in (moved.image, moved.mask)}
    monkeypatch.setattr(module, "describe_readers", lambda paths: [described[p] for p in paths])
    before = make().path(moved)
    (changed,) = (path for path in described if path.suffix == suffix)
    described[changed] = "edited"
    assert make().path(moved) != before


def test_a_relative_path_is_the_same_file(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make().path(pair)
    monkeypatch.chdir(pair.image.parent)
    assert make().path(replace(pair, image=Path(pair.image.name))) == expected


@pytest.mark.parametrize("decoder", ["pillow", "opencv-python-headless", "tifffile", "our own"])
def test_another_decoder_s_samples_are_others(
    pair: Pair, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, version = make().path(pair), module.metadata.version
    monkeypatch.setattr(
        module.metadata, "version", lambda name: "0" if name == decoder else version(name)
    )
    if decoder == "our own":
        monkeypatch.setattr(module, "READERS", 0)
    assert make().path(pair) != before


def test_a_missing_file_is_left_to_the_decoder(pair: Pair, folder: Path) -> None:
    pair.mask.unlink()
    assert is_same(make().load(0, pair, decode), arrays())
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:30],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"another" + data[7:],
        lambda data: data.replace(b"uint8", b"int16"),
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "half a header", "truncated", "longer", "foreign", "another dtype", "zeros"],
)
def test_a_file_that_is_not_whole_is_decoded_and_written_again(pair: Pair, damage: object) -> None:
    cache = make()
    cache.load(0, pair, decode)
    path = cache.path(pair)
    whole = path.read_bytes()
    assert len(whole) == 64 + 5 * 7 * 4
    path.write_bytes(damage(whole))  # type: ignore[operator]
    assert is_same(cache.load(0, pair, decode), arrays())
    assert path.read_bytes() == whole


def test_a_pipe_in_the_place_of_a_sample_is_not_waited_for(pair: Pair) -> None:
    cache = make()
    cache.load(0, pair, decode)
    cache.path(pair).unlink()
    os.mkfifo(cache.path(pair))
    assert is_same(cache.load(0, pair, decode), arrays()) and cache.path(pair).is_file()


def test_class_ids_that_no_mask_has_are_read_again(pair: Pair) -> None:
    cache = make()
    cache.load(0, pair, decode)
    path = cache.path(pair)
    whole = path.read_bytes()
    for ids, is_sound in ((b"\1\0\377", True), (b"\1\2\0", False), (b"\0\0\376", False)):
        path.write_bytes(whole[:-3] + ids)
        assert is_same(cache.load(0, pair, decode), arrays()) is not is_sound


@pytest.mark.parametrize(
    ("total", "free", "is_kept"),
    [(10**12, 10**9, True), (10**12, 10**9 - 1, False), (10**9, 5 * 10**7, True),
     (10**9, 5 * 10**7 - 1, False)],
)  # fmt: skip
def test_a_disk_keeps_a_gigabyte_or_a_twentieth_free(
    pair: Pair, total: int, free: int, is_kept: bool, folder: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(total, total - free, free))
    cache = make()
    for _ in range(2):
        assert is_same(cache.load(0, pair, decode), arrays())
    assert cache.path(pair).exists() == is_kept
    assert capsys.readouterr().err == (
        ""
        if is_kept
        else f"warning: --cache: {folder}: No space left on device; samples that it "
        "does not hold yet are decoded each time\n"
    )


def test_a_folder_that_can_not_be_written_is_one_line_of_one_rank(
    pair: Pair, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.parent.parent.write_text("a file")
    for warns in (True, False):
        cache = make(warns=warns)
        cache.remove_unused()
        for other in (cache, cache):
            assert is_same(other.load(0, pair, decode), arrays())
        err = capsys.readouterr().err
        assert err.count("\n") == err.count(f"--cache: {folder}: Not a directory; ") == warns


def test_only_one_reading_process_warns(pair: Pair, folder: Path) -> None:
    folder.parent.parent.write_text("a file")
    cache, silent = make(), make()
    if (process := os.fork()) == 0:
        cache.load(0, pair, decode)
        os._exit(0)
    os.waitpid(process, 0)
    assert bool(cache.is_silent) and not silent.is_silent


def test_a_writer_that_is_killed_leaves_no_sample(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make()
    path = cache.path(pair)
    if (process := os.fork()) == 0:
        monkeypatch.setattr(Path, "replace", lambda self, to: os.kill(os.getpid(), signal.SIGKILL))
        cache.load(0, pair, decode)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1])
    assert not path.exists() and len(list(path.parent.iterdir())) == 1
    assert is_same(cache.load(0, pair, decode), arrays())
    assert path.exists()


def test_samples_are_removed_a_month_after_their_last_use(tmp_path: Path) -> None:
    pairs = find_pairs(*(make_set(tmp_path, 3) / name for name in ("imgs", "masks")))
    cache = make()
    cache.remove_unused()  # no folder yet
    paths = [cache.path(pair) for pair in pairs]
    for pair, path, days in zip(pairs, paths, (29, 31, 31), strict=True):
        cache.load(0, pair, decode)
        then = time.time() - days * DAY
        os.utime(path, (then, then))
    cache.load(2, pairs[2], never)  # used again
    assert time.time() - paths[2].stat().st_mtime < 60
    cache.remove_unused()
    assert [path.exists() for path in paths] == [True, False, True]
    assert UNUSED_DAYS == 30


@pytest.mark.parametrize(("age", "is_noted"), [(DAY - 60, False), (DAY + 60, True)])
def test_a_use_is_noted_once_a_day(pair: Pair, age: int, is_noted: bool) -> None:
    cache = make()
    cache.load(0, pair, decode)
    path = cache.path(pair)
    then = time.time() - age
    os.utime(path, (then, then))
    cache.load(0, pair, never)
    assert (time.time() - path.stat().st_mtime < 30) == is_noted


@pytest.mark.thorough
def test_a_run_ends_with_the_same_bits(ranks: Ranks, tmp_path: Path) -> None:
    """Without a cache, with a new one, and with one that has all samples, read by two processes."""
    images = make_set(tmp_path / "set", 8, size=(32, 32))
    kept: list[set[Path]] = []
    for name, more in (
        ("none", []),
        ("new", ["--cache"]),
        ("again", ["--cache", "--workers", "1"]),
    ):
        (tmp_path / name).mkdir()
        printed = train(ranks, 2, tmp_path / name, images, "--epochs", "1", *more)
        found = re.search(r"^cache: (.+)$", printed, flags=re.M)
        assert (found is None) == (name == "none")
        if found is not None:
            kept.append(set(Path(found[1]).iterdir()))
        assert_same_state(last(tmp_path / "none"), last(tmp_path / name))
    assert len(kept[0]) >= 7 and kept[0] == kept[1]  # three steps of two, and one to validate on
