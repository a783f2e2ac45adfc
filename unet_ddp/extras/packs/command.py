"""``python -m unet_ddp pack``: write a data set as tar shards and an index, to train on from storage.

    python -m unet_ddp pack --images DIR --masks DIR --output s3://bucket/pack
    torchrun --nproc_per_node=4 train.py --images s3://bucket/pack

The shards have WebDataset's layout: the files of a pair follow each other, ``id.jpg`` and ``id.png``.
"""

from __future__ import annotations

import io
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from glob import escape
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
from unet_ddp.config import DataConfig, TrainConfig, all_but
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import SIDES, Pairs
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.data.splits import OWN_FOLDER
from unet_ddp.errors import UserError, count_of, print_lines
from unet_ddp.extras.cloud import Url, delete, put
from unet_ddp.extras.cloud.pointer import hash_file
from unet_ddp.extras.packs.pack_columns import write_columns
from unet_ddp.extras.packs.pack_files import (
    BLOCK,
    INDEX,
    SHARD,
    list_files,
    member_name,
    shard_name,
)
from unet_ddp.extras.packs.pack_index import PackIndex, Shard
from unet_ddp.files import (
    as_path,
    check_new_folder,
    ended_by_sigterm,
    replacing_folder,
    temporary_folder,
    write_errors,
)
from unet_ddp.settings import Kind, flag

SHARD_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class PackConfig(TrainConfig):
    """Write a data set as tar shards and an index, to train on from storage.

    Takes the flags of train.py that say what the images and masks are.
    """

    unused = all_but(Kind.DATA)
    output: Annotated[str | None, flag("DIR", "-o")] = None
    """New folder for the pack, or an address like s3://bucket/folder."""


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
        _new_pack(output) as folder,
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
        print_lines(*report.notes, *(f"warning: {line}" for line in report.warnings))
        shards = write_pack(folder, data, config.data)
    pairs, files = count_of(len(data.table.pairs), "pair"), count_of(len(shards), "shard")
    size = sum(shard.size for shard in shards) / 1e9
    print_lines(
        f"packed {pairs} into {files} of {size:.2f} GB in all; train on them with: train.py "
        f"--images {output}"
    )
    return 0


@contextmanager
def _new_pack(output: Path) -> Iterator[Path]:
    """Yield an address, or a new folder that becomes `output` if the block succeeds.

    Raises:
        UserError: there is something already; at an address, a pack.
    """
    if isinstance(output, Url):
        found = list_files(output)
        if INDEX in found:
            raise UserError(f"{output}: contains a pack already; use another --output")
        left: dict[str, None] = {}
        for name in sorted(found):
            match = SHARD.fullmatch(name)
            if match and match[1]:  # one without the name of an attempt is the user's
                left[f"shard-{match[1]}*.tar"] = None
        if left:
            print_lines(
                f"warning: {output}: has shards of {count_of(len(left), 'attempt')} that did not finish, "
                f"{', '.join(left)}: delete them, unless one still runs"
            )
        yield output
        return
    check_new_folder(output)
    if output.is_symlink() or os.path.ismount(output) or output.absolute() == Path.cwd():
        reason = "is a link, a mount point or the working folder, whose place no pack can take"
        raise UserError(f"{output}: {reason}; name a new folder in it with --output")
    for other in sorted(output.parent.glob(f".{escape(output.name)}.{'?' * 8}/")):
        print_lines(
            f"warning: {other}: an attempt that did not finish; delete it, unless it still runs"
        )
    with replacing_folder(output) as folder:
        yield folder


@contextmanager
def _deleting_objects(output: Path, names: list[str]) -> Iterator[None]:
    """Delete the objects with these names if the block fails; an error says which are left."""
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        try:
            for name in names if isinstance(output, Url) else ():
                delete(output / name)
        except UserError as failure:
            left = names[0]
            if len(names) > 1:
                left += f", {names[-1]}"
            raise UserError(f"{error}; shards are left in {output}, {left}: {failure}") from None
        raise


def write_pack(output: Path, data: CheckedData, config: DataConfig) -> list[Shard]:
    """Write the shards, and then the index that makes them a pack; return the shards.

    Raises:
        UserError: a file can't be read or written; no object is left.
    """
    table = data.table
    images, masks = set(), set()
    for kind in table.kinds:
        image_suffix, mask_suffix = kind.suffixes
        images.add(image_suffix.lower())
        masks.add(mask_suffix.lower())
    mark = ".mask" if images & masks else ""  # id.png can be one of them only
    validation = 0
    if data.split is not None and data.split.how == OWN_FOLDER:
        validation = len(data.split.validation)
    # No other attempt at an address at the same time, which nothing locks, replaces these shards.
    attempt = f"{secrets.token_hex(4)}-" if isinstance(output, Url) else ""
    places = np.zeros((len(table.pairs), 4), np.uint32)
    begun: list[str] = []
    with _deleting_objects(output, begun):
        how = mark, attempt, begun, config.ignore_index
        shards = list(_write_shards(output, table.pairs, places, *how))
        index = PackIndex(
            table.kinds,
            shards,
            attempt,
            mark,
            validation=validation,
            nodata=config.nodata,
            channels=config.channels,
            class_names=table.pairs.class_names,
        )
        with _new_file(output / INDEX) as path:
            write_columns(path, asdict(index), _index_columns(table, places))
    return shards


def _index_columns(table: Table, places: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """Return the columns of the index."""
    columns = {name: column[:] for name, column in table.columns.items()}
    columns["place"] = places
    columns |= _text_column("name", [pair.name for pair in table.pairs])
    groups = [pair.group or "" for pair in table.pairs]
    if any(groups):
        columns |= _text_column("group", groups)
    sides = np.array([SIDES.index(pair.side) for pair in table.pairs], np.uint8)
    if sides.any():
        columns["side"] = sides
    return columns


def _write_shards(
    output: Path,
    pairs: Pairs,
    places: NDArray[np.uint32],
    mark: str,
    attempt: str,
    begun: list[str],
    ignore: int | None,
) -> Iterator[Shard]:
    """Write pairs to shards, to `places` where they are, to `begun` their names; yield the shards."""
    bar = tqdm(total=len(pairs), desc="packing", unit="pair", leave=False, disable=None)
    row = 0
    while row < len(pairs):
        first = row
        begun.append(shard_name(len(begun), attempt))
        with _new_file(output / begun[-1]) as path:
            with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
                while row < len(pairs) and (row == first or tar.offset < SHARD_BYTES):
                    pair = pairs[row]
                    name = member_name(pair.name)
                    places[row] = [
                        *_add(tar, pairs, pair.image, name + pair.image.suffix),
                        *_add(tar, pairs, pair.mask, name + mark + pair.mask.suffix, ignore),
                    ]
                    row += 1
                    bar.update()
            with path.open("rb") as file:
                shard = Shard(path.stat().st_size, hash_file(file), first)
        yield shard
    bar.close()


def _add(
    tar: tarfile.TarFile, pairs: Pairs, source: Path, name: str, ignore: int | None = None
) -> tuple[int, int]:
    """Add a file of `pairs` byte by byte; return its first block and its size in bytes."""
    member = tarfile.TarInfo(name)
    with pairs.local(source, ignore) as path, as_user_error(path):
        content = path.read_bytes()
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
    return (tar.offset - member.size) // BLOCK, member.size


def _text_column(name: str, texts: list[str]) -> dict[str, NDArray[Any]]:
    """Return texts, each ended by a zero byte, as columns."""
    encoded = [os.fsencode(text) + b"\0" for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {name: np.frombuffer(b"".join(encoded), np.uint8), f"{name}_end": ends}


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Yield a file to write: `path`, or one that becomes this object if the block succeeds.

    Raises:
        UserError: it can't be put, or the index already exists, with another content.
    """
    if not isinstance(path, Url):
        yield path
        return
    with (
        write_errors(temporary_folder(), "make room, or name another folder with TMPDIR"),
        tempfile.TemporaryDirectory(prefix="unet_ddp-", dir=temporary_folder()) as folder,
    ):
        file = Path(folder, path.name)
        yield file
        try:
            put(path, file, replaces=path.name != INDEX)
        except FileExistsError:
            reason = "another pack was put there; use another --output"
            raise UserError(f"{path.parent}: {reason}") from None
