"""Parts of a scene's mask beside its file: what a job that stopped has done, and what becomes the mask."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property, lru_cache
from glob import escape
from itertools import pairwise, product, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unet_ddp.data.masks import IGNORE_ID, Ids, Size
from unet_ddp.errors import UserError
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.base import ADVICE

ROWS = 1024
"""Rows of a part."""


class PartError(UserError):
    """A part that can't be written: as other files of a job, it ends the job."""


class PartKey(NamedTuple):
    """The place of a part."""

    block: int  # of columns
    row: int  # of parts


@dataclass(frozen=True)
class Parts:
    """The parts of a mask (height, width), in rows of parts and blocks of columns."""

    mask: Path
    job: str  # a digest of all that the mask depends on
    size: Size
    blocks: int  # of columns

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.mask.with_name(f".{self.mask.name}.parts-{self.job}")

    @property
    def others(self) -> list[Path]:
        """The folders of other jobs' parts of this mask."""
        found = self.mask.parent.glob(f".{escape(self.mask.name)}.parts-*")
        return sorted({*found} - {self.folder})

    @cached_property
    def rows(self) -> list[range]:
        """The rows of each row of parts."""
        return _divide(self.size[0], -(-self.size[0] // ROWS))

    @cached_property
    def columns(self) -> list[range]:
        """The columns of each block."""
        return _divide(self.size[1], self.blocks)

    @property
    def keys(self) -> list[PartKey]:
        """All parts, block by block from the top."""
        return [*starmap(PartKey, product(range(self.blocks), range(len(self.rows))))]

    def path(self, key: PartKey) -> Path:
        """Return the file of a part."""
        return self.folder / f"{key.block:03d}-{key.row:06d}.npz"

    def write(self, key: PartKey, ids: Ids) -> None:
        """Write the class ids (rows, columns) of a part, whole or not at all.

        Raises:
            PartError: it can't be written.
        """
        try:
            with (
                write_errors(self.mask, ADVICE),
                replacing(self.path(key), durable=True) as temporary,
                temporary.open("wb") as file,
            ):
                np.savez_compressed(file, ids=ids)
        except UserError as error:
            raise PartError(error) from None

    def read(self, key: PartKey) -> Ids:
        """Return the class ids of a part.

        Raises:
            PartError: it can't be read.
        """
        path = self.path(key)
        try:
            with np.load(path) as arrays:
                ids: Ids = arrays["ids"]
                return ids
        except FileNotFoundError:
            raise PartError(
                f"{path}: not on this host; use an --output in a folder that all hosts share"
            ) from None
        except Exception as error:  # of a damaged archive, of many kinds
            raise PartError(f"{path}: corrupt ({error}); delete the file and try again") from None

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _divide(length: int, count: int) -> list[range]:
    return [*starmap(range, pairwise(length * k // count for k in range(count + 1)))]


class MergedMask:
    """A mask of parts as an array (height, width) uint8 of which some rows are read at a time, from the top."""

    dtype = np.dtype(np.uint8)

    def __init__(self, parts: Parts) -> None:
        self.parts, self.shape = parts, parts.size
        self.counts = np.zeros((len(parts.rows), IGNORE_ID + 1), np.int64)
        """Pixels of each id in each row of parts that was read."""
        self._row = lru_cache(1)(self._read_row)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Ids:
        first, last, _ = rows.indices(len(self))
        return np.concatenate(
            [
                self._row(number)[max(0, first - own.start) : last - own.start]
                for number, own in enumerate(self.parts.rows)
                if own.start < last and first < own.stop
            ]
        )

    def _read_row(self, number: int) -> Ids:
        """Return the class ids of a row of parts."""
        found = [self.parts.read(PartKey(block, number)) for block in range(self.parts.blocks)]
        counts = (np.bincount(ids.ravel(), minlength=IGNORE_ID + 1) for ids in found)
        self.counts[number] = sum(counts)
        return np.concatenate(found, axis=1)
