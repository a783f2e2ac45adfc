"""Shards of a pack: which pairs each has, and their files, written by one process or several with the same bytes."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import tarfile
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NamedTuple

from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.readers.read import own_readers, use_own_readers
from unet_ddp.data.remote_pairs import RemotePairs
from unet_ddp.errors import RunError
from unet_ddp.extras.cloud import Url, put, start_reader
from unet_ddp.extras.cloud.pointer import hash_file
from unet_ddp.extras.packs.pack_files import BLOCK, member_name


@dataclass(frozen=True)
class Members:
    """The files of pairs as members of a shard."""

    pairs: Pairs
    mark: str
    """At the end of the masks' names."""
    ignore: int | None
    """Value of ignored pixels, where masks of classes become one file; see `Pairs.local`."""

    def of(self, pair: Pair) -> list[tuple[Path, str, int | None]]:
        """Return the path, the name in a shard, and the value to ignore, of image and of mask."""
        name = member_name(pair.name)
        mask = pair.mask, name + self.mark + pair.mask.suffix, self.ignore
        return [(pair.image, name + pair.image.suffix, None), mask]

    def measure(self, pair: Pair) -> int:
        """Return the bytes that a pair takes in a shard.

        Raises:
            UserError: a file can't be read.
        """
        total = 0
        for (path, name, ignore), stamp in zip(self.of(pair), pair.stamps, strict=True):
            member = tarfile.TarInfo(name)
            if stamp is not None and isinstance(self.pairs, RemotePairs):
                member.size = stamp[0]
            else:
                with self.pairs.local(path, ignore) as local, as_user_error(local):
                    member.size = local.stat().st_size
            # A long name takes further blocks.
            total += len(member.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape"))
            total += -(-member.size // BLOCK) * BLOCK
        return total


class ShardJob(NamedTuple):
    """A shard to write."""

    members: Members
    file: Path  # on this machine
    address: Url | None  # where it is put then, and the file removed


class Written(NamedTuple):
    """A shard that was written."""

    size: int  # bytes
    sha256: str
    places: list[tuple[int, ...]]  # of each pair: first block and bytes of image and of mask


def write_shard(job: ShardJob) -> Written:
    """Write a shard, and put it at its address if it has one.

    Raises:
        UserError: a file can't be read, or the shard can't be put.
        OSError: it can't be written.
    """
    members, file, address = job
    places = []
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as tar:
        for pair in members.pairs:
            place: tuple[int, ...] = ()
            for path, name, ignore in members.of(pair):
                member = tarfile.TarInfo(name)
                with members.pairs.local(path, ignore) as local, as_user_error(local):
                    content = local.read_bytes()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
                place += (tar.offset - member.size) // BLOCK, member.size
            places.append(place)
    with file.open("rb") as stream:
        written = Written(file.stat().st_size, hash_file(stream), places)
    if address is not None:
        put(address, file)
        file.unlink()
    return written


def write_shards(jobs: Iterable[ShardJob], workers: int) -> Generator[Written, None, None]:
    """Yield the shards once they are written, in order, by `workers` processes; a single one is this one.

    Close it: then no process writes any more.

    Raises:
        UserError, OSError: see `write_shard`.
        RunError: a process was ended.
    """
    if workers == 1:
        yield from map(write_shard, jobs)
        return
    started: deque[Future[Written]] = deque()
    with _processes(workers) as pool:
        for job in jobs:
            started.append(pool.submit(write_shard, job))
            if len(started) > workers:  # one more than they write, so that none waits
                yield started.popleft().result()
        while started:
            yield started.popleft().result()


@contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """Yield new processes; they are killed if the block fails, and end with this one.

    They are not forked: the threads of a client of storage do not survive that.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, _start_process, (own_readers(),))
    others = {*multiprocessing.active_children()}
    resource_tracker.ensure_running()  # its start would let SIGINT through again
    try:
        with _without_sigint():
            for _ in range(count):  # each starts one, as none is idle during its imports
                pool.submit(os.getpid)
        yield pool
    except BaseException as error:
        for process in {*multiprocessing.active_children()} - others:
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise RunError(
                "a process that wrote a shard was ended, perhaps because the memory was full; use fewer --workers"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _without_sigint() -> Iterator[None]:
    """Block Ctrl-C, for this process and for good in those that it starts: it ends them itself."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_process(readers: Sequence[str]) -> None:
    """Prepare a process that writes shards; Ctrl-C is for the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    use_own_readers(readers)
    start_reader(warns=False)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
