"""Shards are measured as tar writes them, and written alike by any number of processes.

Processes import this module, so it imports no torch.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.packs.shards import Members, ShardJob, write_shard, write_shards

NAMES = ["a", "b" * 99, "c" * 120, "ö" * 60, "d" * 600, "e/\udcfff"]


def members_of(folder: Path, *sizes: int, kind: type[Pairs] = Pairs, masks: int = 7) -> Members:
    """Pairs of files, of which the images have these sizes in bytes."""
    pairs = []
    for k, size in enumerate(sizes):
        image, mask = folder / f"{k}.jpg", folder / f"{k}.png"
        image.write_bytes(bytes([k]) * size)
        mask.write_bytes(b"m" * (masks * k))
        pairs.append(Pair(NAMES[masks and k % len(NAMES)], image, mask))
    return Members(kind(pairs), ".mask", None)


def test_sizes_are_those_that_tar_writes(tmp_path: Path) -> None:
    """Also with names that take blocks of their own, and files of whole blocks or none."""
    members = members_of(tmp_path, 0, 1, 511, 512, 513, 5000)
    for rows in (range(6), range(2, 5)):
        part = Members(members.pairs[rows.start : rows.stop], ".mask", None)
        write_shard(ShardJob(part, tmp_path / "x.tar", None))
        with tarfile.open(tmp_path / "x.tar") as tar:
            last = tar.getmembers()[-1]
            end = last.offset_data + -(-last.size // 512) * 512
        assert sum(map(members.measure, part.pairs)) == end


class Deadly(Pairs):
    """Pairs of which a process that reads one is killed."""

    @contextmanager
    def local(self, path: Path, ignore: int | None = None) -> Iterator[Path]:
        os.kill(os.getpid(), 9)
        yield path


class Stuck(Pairs):
    """Pairs that nobody reads to the end: who tries says so in a pipe beside them."""

    @contextmanager
    def local(self, path: Path, ignore: int | None = None) -> Iterator[Path]:
        with path.with_name("pids").open("w") as pipe:
            pipe.write(f"{os.getpid()}\n")
        path.with_name("never").read_bytes()
        yield path


@pytest.mark.processes
def test_a_fault_in_a_process_is_one_line_and_ends_all(tmp_path: Path) -> None:
    """What a process raises is raised here; one that is killed is said."""
    before = {*multiprocessing.active_children()}
    good, bad = members_of(tmp_path, 9, 9), members_of(tmp_path, 9, 9)
    jobs = [ShardJob(good, tmp_path / f"{k}.tar", None) for k in range(3)]
    lost = Pairs([Pair("x", tmp_path / "x.jpg", tmp_path / "x.png"), *bad.pairs])
    jobs.insert(1, ShardJob(Members(lost, "", None), tmp_path / "lost.tar", None))
    shards = write_shards(jobs, 2)
    assert next(shards) == write_shard(jobs[0])
    with pytest.raises(UserError, match=r"x\.jpg: not found"):
        next(shards)
    assert {*multiprocessing.active_children()} == before
    deadly = members_of(tmp_path, 9, kind=Deadly)
    jobs[0] = ShardJob(deadly, tmp_path / "deadly.tar", None)
    with pytest.raises(RunError, match=r"a process that wrote a shard was ended, .*--workers$"):
        [*write_shards(jobs, 2)]
    assert {*multiprocessing.active_children()} == before


def write_stuck(folder: Path) -> None:
    jobs = [ShardJob(members_of(folder, 9, kind=Stuck), folder / f"{k}.tar", None) for k in "ab"]
    [*write_shards(jobs, 2)]


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes of others")
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Here it is killed, while both wait for a file."""
    for name in ("pids", "never"):
        os.mkfifo(tmp_path / name)
    parent = multiprocessing.get_context("spawn").Process(target=write_stuck, args=(tmp_path,))
    parent.start()
    pids = set[int]()
    while len(pids) < 2:
        pids |= {*map(int, (tmp_path / "pids").read_text().split())}
    handles = [os.pidfd_open(pid) for pid in pids]
    parent.kill()
    parent.join()
    for handle in handles:
        assert select.select([handle], [], [], 60)[0]
        os.close(handle)
