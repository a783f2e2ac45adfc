"""``python -m unet_ddp pack``: write a data set as tar shards and an index, to train on from storage.

    python -m unet_ddp pack --images DIR --masks DIR --output s3://bucket/pack --workers 8
    torchrun --nproc_per_node=4 train.py --images s3://bucket/pack

The shards have WebDataset's layout: the files of a pair follow each other, ``id.jpg`` and ``id.png``.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from unet_ddp.checks.check import CheckedData, check_dataset
from unet_ddp.checks.data_parts import DataParts
from unet_ddp.checks.table import Table
from unet_ddp.cli import parse_train
from unet_ddp.cli.recipes import naming_recipe
from unet_ddp.config import DataConfig, LaunchConfig, TrainConfig, all_but
from unet_ddp.config.data import POSITIVE, N
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Column
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.data.splits import OWN_FOLDER
from unet_ddp.distributed.device import usable_cores
from unet_ddp.errors import Limit, UserError, count_of, hides_bars, print_lines
from unet_ddp.extras.cloud import Url
from unet_ddp.extras.packs.pack_columns import write_columns
from unet_ddp.extras.packs.pack_files import INDEX, shard_name
from unet_ddp.extras.packs.pack_index import PackIndex, Shard
from unet_ddp.extras.packs.pack_output import deleting_objects, new_file, new_pack, shard_folder
from unet_ddp.extras.packs.shards import Members, ShardJob, write_shard
from unet_ddp.extras.tune.trainings import as_argv
from unet_ddp.files import as_path, ended_by_sigterm
from unet_ddp.prediction.threads import in_threads
from unet_ddp.settings import Brief, Kind, flag
from unet_ddp.storage import real_file

SHARD_MB = 256.0
# Settings that are done with: training on the pack needs the others again, as --reader and --nodata.
_IN_PACK = (
    "masks", "list", "mask_suffix", "val_images", "val_masks", "all_masks", "workers", "skip_bad_files"
)  # fmt: skip


@dataclass(frozen=True)
class PackLaunch(LaunchConfig):
    """Settings of one start; never saved with the run."""

    workers: Annotated[
        int | None, N, POSITIVE, Brief("Shards written at a time (default: one per core).")
    ] = None
    """Shards written at a time; any number writes the same bytes (default: one per core)."""


@dataclass(frozen=True)
class PackConfig(TrainConfig):
    """Write a data set as tar shards and an index, to train on from storage.

    Takes the flags of train.py that say what the images and masks are.
    """

    unused = all_but(Kind.DATA) - {"workers"}
    launch: PackLaunch = field(default_factory=PackLaunch)
    output: Annotated[str | None, flag("DIR", "-o")] = None
    """New folder for the pack, or an address like s3://bucket/folder."""
    shard_size: Annotated[float, flag("MB"), Limit(above=0, at_most=1_000_000)] = SHARD_MB
    """Size of a shard in MB of 2**20 bytes: each ends with the pair that reaches it."""


def main(argv: Sequence[str], parts: DataParts) -> int:
    """Check the data set that `argv` names and pack it."""
    config = parse_train(argv, prog="python -m unet_ddp pack", kind=PackConfig)
    if config.output is None:
        raise UserError("--output: name a new folder, or an address like s3://bucket/folder")
    if config.data.window is not None:
        raise UserError(
            "--window: pack takes images as they are; pack them without, or train on the scenes"
        )
    output = as_path(config.output)
    use_own_readers(config.data.reader)
    with (
        naming_recipe(config.launch.config, config.recipe),
        ended_by_sigterm(),
        new_pack(output) as folder,
    ):
        report = Report()
        data = check_dataset(
            config.data,
            report,
            seed=config.optimization.seed,
            parts=parts,
            skip_bad=config.launch.skip_bad_files,
        )
        assert data is not None  # a report that does not collect raises
        _refuse_polygons(data.table)
        print_lines(*report.notes, *(f"warning: {line}" for line in report.warnings))
        workers = config.launch.workers or usable_cores()
        shards = write_pack(folder, data, config.data, workers=workers, shard_mb=config.shard_size)
    pairs, files = count_of(len(data.table.pairs), "pair"), count_of(len(shards), "shard")
    size = sum(shard.size for shard in shards) / 1e9
    flags = shlex.join(as_argv(config, {}, **dict.fromkeys(_IN_PACK), images=str(output)))
    print_lines(
        f"packed {pairs} into {files} of {size:.2f} GB in all; train on them with: train.py {flags}"
    )
    return 0


def _refuse_polygons(table: Table) -> None:
    for *_, pair in table.groups:
        if (file := real_file(pair.mask)) != pair.mask:
            raise UserError(
                f"{file}: masks that are polygons are made when they are read, and a pack has files; pack masks that "
                "are images, as gdal_rasterize makes them"
            )


def write_pack(
    output: Path,
    data: CheckedData,
    config: DataConfig,
    *,
    workers: int = 1,
    shard_mb: float = SHARD_MB,
) -> list[Shard]:
    """Write the shards, `workers` at a time, and then the index that makes them a pack; return the shards.

    Raises:
        UserError: a file can't be read or written; no object is left.
    """
    table = data.table
    mark = _find_mark(table)
    # No other attempt at an address at the same time, which nothing locks, replaces these shards.
    attempt = f"{secrets.token_hex(4)}-" if isinstance(output, Url) else ""
    places = np.zeros((len(table.pairs), 4), np.uint32)
    begun: list[str] = []
    with deleting_objects(output, begun):
        members = Members(table.pairs, mark, config.ignore_index)
        parts = plan_shards(members, int(shard_mb * 2**20))
        shards = _write_shards(output, members, parts, places, attempt, begun, workers)
        index = _make_index(shards, attempt, mark, data, config)
        with new_file(output / INDEX) as path:
            write_columns(path, asdict(index), _index_columns(table, places))
    return shards


def _make_index(
    shards: list[Shard], attempt: str, mark: str, data: CheckedData, config: DataConfig
) -> PackIndex:
    return PackIndex(
        data.table.kinds,
        shards,
        attempt,
        mark,
        validation=_count_validation(data),
        nodata=config.nodata,
        channels=config.channels,
        class_names=data.table.pairs.class_names,
        readers=config.reader,
        overlap=config.overlap,
        instances=config.instances,
        ignore_index=config.ignore_index,
        mask_threshold=config.mask_threshold,
    )


def _find_mark(table: Table) -> str:
    images, masks = ({kind.suffixes[k].lower() for kind in table.kinds} for k in (0, 1))
    return ".mask" if images & masks else ""  # id.png can be one of them only


def _count_validation(data: CheckedData) -> int:
    """Return how many pairs at the end come from a validation folder."""
    split = data.split
    return len(split.validation) if split is not None and split.how == OWN_FOLDER else 0


def _index_columns(table: Table, places: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """Return the columns of the index."""
    columns = {name: column[:] for name, column in table.columns.items()}
    columns["place"] = places
    of_texts: tuple[Column, ...] = ("name", "group", "source")
    for name in of_texts:
        texts = [*table.pairs.texts(name)]
        if any(texts):
            columns |= _text_column(name, texts)
    sides = table.pairs.sides()
    if sides.any():
        columns["side"] = sides
    return columns


def plan_shards(members: Members, most: int) -> list[slice]:
    """Return the rows of the pairs of each shard: it ends with the pair that brings it to `most` bytes."""
    sizes = in_threads(members.measure, members.pairs, usable_cores())
    bar = tqdm(sizes, "finding sizes", len(members.pairs), leave=False, disable=hides_bars())
    firsts, total = [0], 0
    for row, size in enumerate(bar):
        if total >= most:
            firsts.append(row)
            total = 0
        total += size
    return [slice(*rows) for rows in pairwise([*firsts, len(members.pairs)])]


def _write_shards(
    output: Path,
    members: Members,
    parts: Sequence[slice],
    places: NDArray[np.uint32],
    attempt: str,
    begun: list[str],
    workers: int,
) -> list[Shard]:
    """Write `parts` of the pairs, to `places` where they are, to `begun` the shards' names; return the shards."""
    bar = tqdm(
        total=len(members.pairs), desc="packing", unit="pair", leave=False, disable=hides_bars()
    )

    def list_jobs(folder: Path) -> Iterator[ShardJob]:
        for number, rows in enumerate(parts):
            name = shard_name(number, attempt)
            begun.append(name)
            address = output / name if isinstance(output, Url) else None
            yield ShardJob(replace(members, pairs=members.pairs[rows]), folder / name, address)

    shards = []
    with (
        shard_folder(output) as folder,
        # Threads: most of the time is the disk's or the network's, and SHA-256 releases Python's lock. They end
        # before the folder is removed.
        closing(in_threads(write_shard, list_jobs(folder), workers)) as written,
        bar,
    ):
        for rows, (size, sha256, found) in zip(parts, written, strict=True):
            places[rows] = found
            shards.append(Shard(size, sha256, rows.start))
            bar.update(len(found))
    return shards


def _text_column(name: str, texts: list[str]) -> dict[str, NDArray[Any]]:
    """Return texts, each ended by a zero byte, as columns."""
    encoded = [os.fsencode(text) + b"\0" for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {name: np.frombuffer(b"".join(encoded), np.uint8), f"{name}_end": ends}
