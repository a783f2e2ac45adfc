"""Shards are measured as tar writes them."""

from __future__ import annotations

import tarfile
from pathlib import Path

from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.extras.packs.pack_files import member_name
from unet_ddp.extras.packs.shards import Members, ShardJob, write_shard

NAMES = ["a", "b" * 99, "c" * 120, "ö" * 60, "d" * 600, "e/\udcfff"]


def members_of(folder: Path, *sizes: int, masks: int = 7) -> Members:
    """Pairs of files, of which the images have these sizes in bytes."""
    pairs = []
    for k, size in enumerate(sizes):
        image, mask = folder / f"{k}.jpg", folder / f"{k}.png"
        image.write_bytes(bytes([k]) * size)
        mask.write_bytes(b"m" * (masks * k))
        pairs.append(Pair(NAMES[masks and k % len(NAMES)], image, mask))
    return Members(Pairs(pairs), ".mask", None)


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


def test_names_of_members_differ_and_lead_nowhere_else() -> None:
    """Of the files of a list anywhere on the disk, too."""
    names = ["a", "/a", "/data/a.b", "data/a.b", "../a", "%2Fa", "%252Fa"]
    members = [member_name(name) for name in names]
    assert len({*members}) == len(names)
    assert member_name("/data/a.b") == "%2Fdata/a%2Eb"
    assert not any(member.startswith("/") or "." in member for member in members)
