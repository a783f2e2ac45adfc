"""The cache of decoded samples: the same pixels, whoever fills it and whatever befalls it."""

from __future__ import annotations

import errno
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_set
from tests.ranks import Ranks
from tests.test_resume import assert_same_state, last, train
from unet_ddp.data import cache as module
from unet_ddp.data.cache import Contents, SampleCache, forget, open_cache
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import match

COUNT = 6


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    folder = make_set(tmp_path / "set", COUNT, size=(24, 40))
    pairs = match(folder / "imgs", folder / "masks").pairs
    return Contents(pairs, [(12, 20)] * COUNT, Labels((0, 255)), ImageFormat(3), 0.5, False)


def opened(contents: Contents, *, limit: int | None = None) -> tuple[SampleCache, str]:
    return open_cache("disk", contents, limit=limit, memory=None, token="test")


def dataset(contents: Contents, cache: SampleCache | None) -> SegmentationDataset:
    return SegmentationDataset(
        contents.pairs, contents.labels, contents.format, scale=contents.scale, cache=cache
    )


def samples(contents: Contents, cache: SampleCache | None) -> list[torch.Tensor]:
    data = dataset(contents, cache)
    return [part for index in range(len(data)) for part in data[0, index][:2]]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_what_is_kept_is_what_was_read(contents: Contents, monkeypatch: pytest.MonkeyPatch) -> None:
    read = samples(contents, None)
    cache, line = opened(contents)
    assert "filled as they are read" in line
    assert equal(samples(contents, cache), read)
    assert cache.filled == COUNT

    again, line = opened(contents)
    assert f"{COUNT} of them there already" in line
    monkeypatch.setattr(SegmentationDataset, "_decode", None)  # no file is opened any more
    assert equal(samples(contents, again), read)
    assert equal(samples(contents, pickle.loads(pickle.dumps(again))), read)


def test_a_sample_may_be_changed_and_the_cache_stays(contents: Contents) -> None:
    cache, _ = opened(contents)
    read = samples(contents, cache)
    for part in samples(contents, cache):
        part.fill_(77)
    assert equal(samples(contents, cache), read)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("a file changes", "files or settings have changed"),
        ("cut short", "cut short"),
        ("another version", "another version"),
        ("a power cut", "the machine went down"),
    ],
)
def test_what_cannot_be_believed_is_made_anew(
    contents: Contents, damage: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, _ = opened(contents)
    samples(contents, cache)
    if damage == "a file changes":
        changed = contents.pairs[0]
        changed.image.write_bytes(contents.pairs[1].image.read_bytes())
        os.utime(changed.image, ns=(1, 1))
    elif damage == "cut short":
        os.truncate(cache.path, cache.path.stat().st_size - 1)
    elif damage == "another version":
        with cache.path.open("r+b") as file:
            file.write(b"unet_ddp samples 0")
    else:
        monkeypatch.setattr(module, "_boot", lambda: "another")
    again, line = opened(contents)
    assert "made anew" in line
    assert told in line
    assert again.filled == 0
    assert equal(samples(contents, again), samples(contents, None))


def test_a_whole_cache_survives_a_power_cut(
    contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, _ = opened(contents)
    samples(contents, cache)
    cache.flush()
    monkeypatch.setattr(module, "_boot", lambda: "another")
    assert "made anew" not in opened(contents)[1]


def test_settings_do_not_share_a_cache(contents: Contents) -> None:
    cache, _ = opened(contents)
    samples(contents, cache)
    inverted = Contents(**{**vars(contents), "labels": Labels((255, 0))})
    other, _ = opened(inverted)
    assert other.path != cache.path
    assert not equal(samples(inverted, other), samples(contents, cache))


def test_as_many_as_have_room(contents: Contents) -> None:
    each = int(contents.ends[0])
    cache, line = opened(contents, limit=4096 * 2 + 2 * each)
    assert "cache: 2 pairs" in line and f"no room for the other {COUNT - 2}" in line
    assert equal(samples(contents, cache), samples(contents, None))
    assert cache.filled == 2
    with pytest.raises(OSError, match="would be needed"):
        opened(contents, limit=1000)


def test_a_disk_that_becomes_full_is_told_once(
    contents: Contents, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, _ = opened(contents)
    write, written = os.pwrite, 0

    def until_full(file: int, data: bytes, offset: int) -> int:
        nonlocal written
        written += len(data)
        if written > 3 * int(contents.ends[0]) and len(data) > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", until_full)
    assert equal(samples(contents, cache), samples(contents, None))
    assert 0 < cache.filled < COUNT
    told = capsys.readouterr().err
    assert told.count("No space left") == 1
    assert str(cache.path) in told
    monkeypatch.undo()
    again, _ = opened(contents)  # there is room again
    samples(contents, again)
    assert again.filled == COUNT


def test_killed_while_it_is_filled_and_filled_by_two(contents: Contents) -> None:
    """A slot is whole or empty, whoever was killed at whichever write, and two may fill one."""
    truth = samples(contents, None)
    for last_write in range(9):
        cache, _ = opened(contents)
        if (child := os.fork()) == 0:
            _fill_until_killed(contents, cache, last_write)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        for slot in range(COUNT):
            found = cache.get(slot)
            if found is not None:
                assert np.array_equal(found[0], truth[2 * slot].numpy())
                assert np.array_equal(found[1], truth[2 * slot + 1].numpy())
        other = opened(contents)[0]
        assert equal(samples(contents, other), truth)
        assert equal(samples(contents, cache), truth)
        assert cache.filled == COUNT
        cache.path.unlink()


def _fill_until_killed(contents: Contents, cache: SampleCache, last_write: int) -> None:
    """For a child: leave by a SIGKILL in the middle of one of the writes."""
    write, count = os.pwrite, 0

    def dying(file: int, data: bytes, offset: int) -> int:
        nonlocal count
        if count == last_write:
            if len(data) > 8:  # the system writes 8 bytes at once or not at all
                write(file, bytes(data)[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return write(file, data, offset)

    os.pwrite = dying
    samples(contents, cache)
    os._exit(0)


def test_a_cache_in_memory_has_no_name_and_so_ends_with_the_run(contents: Contents) -> None:
    def names() -> set[str]:
        return {path.name for path in Path("/dev/shm").glob("unet_ddp*")}

    cache, _ = open_cache("ram", contents, limit=None, memory=10**9, token="test")
    assert names()
    forget(cache)
    assert not names()
    assert equal(samples(contents, cache), samples(contents, None))
    assert cache.filled == COUNT


@pytest.mark.parametrize(("size", "kind"), [(1, "ram"), (2, "disk")])
def test_a_run_ends_with_the_same_bits(ranks: Ranks, tmp_path: Path, size: int, kind: str) -> None:
    """With a cache that is filled, with one that is there, and with none."""
    images = make_set(tmp_path / "set", 8, size=(32, 32))
    ends = []
    for name, more in (("none", ["none"]), ("new", [kind]), ("again", [kind, "--workers", "1"])):
        folder = tmp_path / name
        folder.mkdir()
        told = train(ranks, size, folder, images, "--epochs", "1", "--cache", *more)[0]
        assert ("of them there already" in told) == (name == "again" and kind == "disk")
        ends.append(last(folder))
    assert_same_state(ends[0], ends[1])
    assert_same_state(ends[0], ends[2])


def test_a_run_goes_on_where_there_can_be_no_cache(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = make_set(tmp_path / "set", 8, size=(32, 32))
    told = train(
        ranks, 1, tmp_path, images, "--epochs", "1", "--cache", "disk", "--cache-limit", "1e-6"
    )[0]
    assert "warning: --cache disk: " in told
    assert "may be taken; the run goes on without it" in told


def test_a_folder_that_cannot_be_written_to(
    contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "a file"
    home.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    with pytest.raises(OSError, match="Not a directory") as caught:
        opened(contents)
    assert caught.value.filename
