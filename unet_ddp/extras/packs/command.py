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
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from unet_ddp.checks.check import CheckedData, check_dataset
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
from unet_ddp.extras.packs.pack_index import PackIndex, Shard
from unet_ddp.extras.packs.pairs import BLOCK, INDEX, SHARD, list_files, member_name, shard_name
from unet_ddp.files import (
    as_path,
    check_writable,
    ended_by_sigterm,
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


def main(argv: Sequence[str]) -> int:
    """Check the data set that `argv` names and pack it."""
    config = parse_train(argv, prog="python -m unet_ddp pack", kind=PackConfig)
    if config.output is None:
        raise UserError("--output: name a new folder, or an address like s3://bucket/folder")
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
            skip_bad=config.launch.skip_bad_files,
        )
        assert data is not None  # a report that does not collect raises
        print_lines(*report.notes, *(f"warning: {line}" for line in report.warnings))
        shards = write_pack(folder, data, config.data)
    size = sum(shard.size for shard in shards) / 1e9
    print_lines(
        f"packed {count_of(len(data.table.pairs), 'pair')} into {count_of(len(shards), 'shard')} of {size:.2f} GB in all; "
        f"train on them with: train.py --images {output}"
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
        # One without the name of an attempt is the user's.
        attempts = {match[1]: None for name in sorted(found) if (match := SHARD.fullmatch(name))}
        if left := [f"shard-{attempt}*.tar" for attempt in attempts if attempt]:
            print_lines(
                f"warning: {output}: has shards of {count_of(len(left), 'attempt')} that did not finish, "
                f"{', '.join(left)}: delete them, unless one still runs"
            )
        yield output
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output}: already exists; use another --output")
    if output.is_symlink() or os.path.ismount(output) or output.absolute() == Path.cwd():
        reason = "is a link, a mount point or the working folder, whose place no pack can take"
        raise UserError(f"{output}: {reason}; name a new folder in it with --output")
    check_writable(output.parent, "--output")
    for other in sorted(output.parent.glob(f".{escape(output.name)}.{'?' * 8}/")):
        print_lines(
            f"warning: {other}: an attempt that did not finish; delete it, unless it still runs"
        )
    with write_errors(output, "make room, or use another --output"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            temporary = Path(folder, output.name)
            temporary.mkdir()
            yield temporary
            temporary.replace(output)  # all or nothing


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
            left = ", ".join(names[:1] + names[1:][-1:])  # the first and the last
            raise UserError(f"{error}; shards are left in {output}, {left}: {failure}") from None
        raise


def write_pack(output: Path, data: CheckedData, config: DataConfig) -> list[Shard]:
    """Write the shards, and then the index that makes them a pack; return the shards.

    Raises:
        UserError: a file can't be read or written; no object is left.
    """
    table = data.table
    suffixes = [[suffix.lower() for suffix in kind.suffixes] for kind in table.kinds]
    images, masks = (set(side) for side in zip(*suffixes, strict=True))
    mark = ".mask" if images & masks else ""  # id.png can be one of them only
    # No other attempt at an address at the same time, which nothing locks, replaces these shards.
    attempt = f"{secrets.token_hex(4)}-" if isinstance(output, Url) else ""
    places = np.zeros((len(table.pairs), 4), np.uint32)
    begun: list[str] = []
    with _deleting_objects(output, begun):
        how = mark, attempt, begun, config.ignore_index
        shards = list(_write_shards(output, table.pairs, places, *how))
        own = data.split is not None and data.split.how == OWN_FOLDER
        index = PackIndex(
            table.kinds,
            shards,
            attempt,
            mark,
            validation=len(data.split.validation) if own and data.split else 0,
            nodata=config.nodata,
            channels=config.channels,
            class_names=table.pairs.class_names,
        )
        try:
            with _new_file(output / INDEX) as path:
                write_columns(path, asdict(index), _index_columns(table, places))
        except FileExistsError:
            raise UserError(f"{output}: another pack was put there; use another --output") from None
    return shards


def _index_columns(table: Table, places: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """Return the columns of the index."""
    columns = {name: column[:] for name, column in table.columns.items()} | {"place": places}
    columns |= _text_column("name", [pair.name for pair in table.pairs])
    if any(pair.group for pair in table.pairs):
        columns |= _text_column("group", [pair.group or "" for pair in table.pairs])
    sides = np.array([SIDES.index(pair.side) for pair in table.pairs], np.uint8)
    return columns | ({"side": sides} if sides.any() else {})


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
    bar = tqdm(pairs, "packing", unit="pair", leave=False, disable=None)
    rows = iter(enumerate(bar))
    row, pair = next(rows, (0, None))
    number = 0
    while pair is not None:
        first = row
        begun.append(shard_name(number, attempt))
        with _new_file(output / begun[-1]) as path:
            with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
                while pair is not None and (row == first or tar.offset < SHARD_BYTES):
                    name = member_name(pair.name)
                    places[row] = [
                        *_add(tar, pairs, pair.image, name + pair.image.suffix),
                        *_add(tar, pairs, pair.mask, name + mark + pair.mask.suffix, ignore),
                    ]
                    row, pair = next(rows, (row, None))
            with path.open("rb") as file:
                shard = Shard(path.stat().st_size, hash_file(file), first)
        yield shard
        number += 1


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
        FileExistsError: the object already exists, with another content.
    """
    if not isinstance(path, Url):
        yield path
        return
    with ExitStack() as stack:
        place = Path(tempfile.gettempdir())
        with write_errors(place, "make room, or name another folder with TMPDIR"):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="unet_ddp-"))
            yield Path(folder, path.name)
        put(path, Path(folder, path.name), replaces=path.name != INDEX)
