"""Packs: a data set in tar shards, with an index of columns from which training starts at once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.memory import remove_unused
from unet_ddp.data.pairs import SIDES, Column, Pair
from unet_ddp.data.readers.read import own_readers
from unet_ddp.data.remote_pairs import RemotePairs
from unet_ddp.errors import UserError, hides_bars
from unet_ddp.extras.cloud import NotFoundError, Url, find_stamp, read
from unet_ddp.extras.cloud.pointer import hash_file
from unet_ddp.extras.packs.pack_columns import StoredColumn, read_columns
from unet_ddp.extras.packs.pack_files import (
    BLOCK,
    INDEX,
    list_files,
    measure_objects,
    member_name,
    shard_name,
)
from unet_ddp.extras.packs.pack_index import PackIndex, check_index, check_settings
from unet_ddp.files import (
    as_path,
    cache_folder,
    explain_absence,
    is_address,
    refuse_special,
    replacing,
    write_errors,
)
from unet_ddp.storage import Storage, local_file, storage_of

_ROWS = 1 << 16  # whose names are in memory at a time


@dataclass(frozen=True, eq=False)
class Pack:
    """An open pack."""

    folder: Path  # or address
    digest: str  # of its index
    index: PackIndex
    columns: Mapping[str, StoredColumn]
    """The columns of a `Table`, and `place` (N, 4): first block and bytes of image and of mask in the shard.

    `name`, `group` and `source`: each text is ended by a zero byte, with `name_end` (N,) and so on.
    `group`, `source` and `side` (N,) exist only if a list names them.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.folder, self.digest)

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """Row of the first pair of each shard."""
        return np.array([shard.first for shard in self.index.shards])

    def shard(self, number: int) -> Path:
        """Return the path of a shard."""
        return self.folder / shard_name(number, self.index.attempt)

    @property
    def pairs(self) -> PackedPairs:
        """All pairs."""
        return PackedPairs(self, np.arange(self.columns["kind"].shape[0], dtype=np.uint32))

    def pair(self, row: int) -> Pair:
        """Return the pair of a row; its paths name parts of a shard."""
        number = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        shard = self.shard(number)
        place = self.columns["place"][row : row + 1][0].tolist()
        image_block, image_bytes, mask_block, mask_bytes = place
        (kind,) = self.columns["kind"][row : row + 1]
        (name,) = self._read_texts("name", row, row + 1)
        group, source, side = "", "", 0
        if "group" in self.columns:
            (group,) = self._read_texts("group", row, row + 1)
        if "source" in self.columns:
            (source,) = self._read_texts("source", row, row + 1)
        if "side" in self.columns:
            (side,) = self.columns["side"][row : row + 1]
        _, _, member = member_name(name).rpartition("/")
        image_suffix, mask_suffix = self.index.kinds[kind].suffixes
        image = as_path(f"{shard}#{image_block * BLOCK}+{image_bytes}/{member}{image_suffix}")
        member += self.index.mark
        mask = as_path(f"{shard}#{mask_block * BLOCK}+{mask_bytes}/{member}{mask_suffix}")
        version = int(self.digest[:15], 16)
        stamps = (image_bytes, version), (mask_bytes, version)
        return Pair(name, image, mask, group or None, SIDES[side] or None, stamps, source or None)

    def texts(self, column: str, rows: NDArray[np.uint32]) -> Iterator[str]:
        """Yield the texts of rows, which are in rising order."""
        for first in range(0, self.columns["kind"].shape[0], _ROWS):
            own = rows[slice(*np.searchsorted(rows, (first, first + _ROWS)))]
            if len(own):
                found = self._read_texts(column, first, first + _ROWS)
                yield from (found[row] for row in (own - np.uint32(first)).tolist())

    def _read_texts(self, column: str, first: int, stop: int) -> list[str]:
        """Return the texts of all rows from `first` to `stop`."""
        ends = self.columns[f"{column}_end"][max(0, first - 1) : stop]
        begin = int(ends[0]) if first else 0
        content = self.columns[column][begin : int(ends[-1])].tobytes()
        return os.fsdecode(content).split("\0")[:-1]


class PackedPairs(RemotePairs):
    """Pairs of a pack, each made when it is asked for; a part of a shard is read as an object is."""

    def __init__(self, pack: Pack, rows: NDArray[np.uint32]) -> None:
        self.pack, self.rows = pack, rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> PackedPairs: ...
    def __getitem__(self, index: int | slice) -> Pair | PackedPairs:
        if isinstance(index, slice):
            return PackedPairs(self.pack, self.rows[index])
        return self.pack.pair(int(self.rows[index]))

    @property
    def storage(self) -> Storage | None:
        """The storage of the pack's address; None of a folder of this machine."""
        return storage_of(self.pack.folder) if is_address(self.pack.folder) else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes' folders that were packed."""
        return self.pack.index.class_names

    def texts(self, column: Column) -> Iterator[str]:
        """Yield a column of the pairs; empty where no list gave any."""
        if column not in self.pack.columns:
            return repeat("", len(self))
        if column == "side":
            return (SIDES[side] for side in self.pack.columns["side"][:][self.rows].tolist())
        return self.pack.texts(column, self.rows)

    def select(self, chosen: NDArray[np.bool_]) -> PackedPairs:
        """Return the chosen ones, sorted by name."""
        return PackedPairs(self.pack, self.rows[chosen])

    @property
    def scanned(self) -> PackedPairs:
        """These pairs: their pack was scanned before."""
        return self

    @property
    def table(self) -> Table:
        """The scan of the whole pack before it was packed."""
        return Table(self.pack.pairs, self.pack.index.kinds, self.pack.columns)

    def divide(self, config: DataConfig) -> tuple[PackedPairs, PackedPairs | None]:
        """Return the pairs of a whole pack, and those that are its validation folder's.

        Raises:
            UserError: shards are missing, or the settings are not those that it was packed with.
        """
        if config.val_images is not None:
            raise UserError("--val-images: a pack has its own validation images; leave it out")
        self._check_shards()
        index = self.pack.index
        check_settings(self.pack.folder, index, config)
        now, known = [config.nodata, config.channels], [index.nodata, index.channels]
        has_moments = self.pack.columns["moments"].shape[1]
        if has_moments and str(known) != str(now):  # nan is not equal to nan
            raise UserError(
                f"{self.pack.folder}: was packed with --nodata and --channels {known}, not {now} "
                "(None: not given); give the same, or pack the images again"
            )
        if not index.validation:
            return self, None
        first = len(self) - index.validation
        return self[:first], self[first:]

    def check_content(self) -> None:
        """Raise a UserError if a shard is corrupt."""
        self._check_shards(whole=True)

    def _check_shards(self, *, whole: bool = False) -> None:
        """Check that the shards match the index: their sizes, or the `whole` content.

        Raises:
            UserError: one is missing, or another.
        """
        pack = self.pack
        is_web = str(pack.folder).startswith(("http://", "https://"))
        paths = map(pack.shard, range(len(pack.index.shards)))
        found = measure_objects([*paths]) if is_web else list_files(pack.folder)
        is_hidden = not whole or hides_bars()
        shards = tqdm(pack.index.shards, "reading", unit="shard", leave=False, disable=is_hidden)
        for number, shard in enumerate(shards):
            path = pack.shard(number)
            size = found.get(path.name)
            fault = ""
            if size is None:
                fault = "missing"
            elif size != shard.size:
                fault = f"{size} bytes, its index says {shard.size}"
            elif whole:
                with local_file(path) as local, local.open("rb") as file:
                    if hash_file(file) != shard.sha256:
                        fault = "corrupt"
            if fault:
                raise UserError(f"{path}: {fault}; copy it again, or pack the images again")
        if is_web:
            read(pack.pair(0).image)  # as training does: not every web server sends parts of files


def open_pack(folder: Path) -> PackedPairs:
    """Return all pairs of the pack in a folder or at an address; see `_open`.

    Raises:
        UserError: as `_open`, or its files need a reader of the user's own, and none is given.
    """
    pack = _open(folder)
    if pack.index.readers and not own_readers():
        raise UserError(
            f"{folder}: was packed with --reader {' '.join(pack.index.readers)}; give it again"
        )
    return pack.pairs


def _open(folder: Path, digest: str | None = None) -> Pack:
    """Open the pack in a folder or at an address, whose index is copied to this machine once.

    Args:
        folder: what `pack` wrote.
        digest: of its index, if this was checked before.

    Raises:
        UserError: there is none, its index is corrupt, or is another one than that with `digest`.
    """
    path = folder / INDEX
    try:
        refuse_special(path)
        path = _copy_index(folder) if isinstance(folder, Url) else path
        found, plain, columns = read_columns(path, digest)
        index = check_index(path, plain, columns if digest is None else None)
        return Pack(folder, found, index, columns)
    except NotADirectoryError:
        reason = "is a file, not the folder of a pack"
    except (FileNotFoundError, NotFoundError):
        reason = "contains no pack"
    except OSError as error:
        reason = error.strerror or str(error)
    except UserError:
        if isinstance(folder, Url) and not isinstance(path, Url):
            path.unlink(missing_ok=True)  # a damaged copy: the next start makes another
        raise
    if not isinstance(folder, Url) and not os.path.lexists(folder):
        raise explain_absence(folder, "not found; name the pack by --images, or use --masks too")
    raise UserError(f"{folder}: {reason} ({INDEX}); for a folder of images, use --masks too")


def _copy_index(folder: Url) -> Path:
    """Return this machine's copy of a remote index, made by the first process that asks."""
    from filelock import FileLock

    source = folder / INDEX
    caches = cache_folder()
    if caches is None:
        raise UserError(f"{source}: needs a cache folder; name one with XDG_CACHE_HOME")
    name, version = _digest(source), _digest(find_stamp(source))
    path = caches / f"pack-{name}-{version}.index"
    advice = "make room, or name another folder with XDG_CACHE_HOME"
    with write_errors(caches, advice), FileLock(caches / f"pack-{name}.lock"):
        if not path.exists():
            for older in caches.glob(f"pack-{name}-*.index"):
                older.unlink()  # processes that have it open read on
            remove_unused(caches.glob("pack-*"))
            with local_file(source) as copy, replacing(path) as temporary:
                shutil.copyfile(copy, temporary)
        os.utime(path)
    return path


def _digest(value: object) -> str:
    return hashlib.sha256(str(value).encode("utf-8", "surrogateescape")).hexdigest()[:16]
