"""Shards of a pack: which pairs each has, and their files."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.remote_pairs import RemotePairs
from unet_ddp.extras.cloud import Url, put
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
