"""Parts of a scene's mask beside its file: what a job that stopped has done, and what becomes the mask."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        rows = range(len(self.rows))
        return [PartKey(block, row) for block in range(self.blocks) for row in rows]

    def path(self, block: int, row: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"{block:03d}-{row:06d}.npz"

    def write(self, key: PartKey, ids: Ids) -> None:
        """Write a part, whole or not at all.

        Raises:
            PartError: it can't be written.
        """
        try:
            with (
                write_errors(self.mask, ADVICE),
                replacing(self.path(*key), durable=True) as temporary,
                temporary.open("wb") as file,
            ):
                counts = np.bincount(ids.ravel(), minlength=IGNORE_ID + 1)
                np.savez_compressed(file, ids=ids, counts=counts)
        except UserError as error:
            raise PartError(error) from None

    def read(self, name: str, block: int, row: int) -> NDArray[Any]:
        """Return `ids` (rows, columns) of a part, or its `counts` of each of 256 ids.

        Raises:
            PartError: it can't be read.
        """
        path = self.path(block, row)
        try:
            with np.load(path) as arrays:
                found: NDArray[Any] = arrays[name]
                return found
        except Exception as error:  # of a damaged archive, of many kinds
            if not path.exists():
                raise PartError(
                    f"{path}: not on this host; use an --output in a folder that all hosts share"
                ) from None
            raise PartError(f"{path}: corrupt ({error}); delete the file and try again") from None

    def count(self) -> NDArray[np.int64]:
        """Return how many pixels have each of 256 ids."""
        counts = [self.read("counts", *key) for key in self.keys]
        total: NDArray[np.int64] = np.sum(counts, axis=0)
        return total

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _divide(length: int, count: int) -> list[range]:
    edges = [length * k // count for k in range(count + 1)]
    return [range(*each) for each in pairwise(edges)]


class MergedMask:
    """A mask of parts as an array (height, width) uint8 of which some rows are read at a time, from the top."""

    dtype = np.dtype(np.uint8)

    def __init__(self, parts: Parts) -> None:
        self.parts, self.shape = parts, parts.size
        self._kept: tuple[int, Ids] = -1, np.zeros((0, 0), np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Ids:
        first, last, _ = rows.indices(len(self))
        pieces = []
        for number, own in enumerate(self.parts.rows):
            if own.start < last and first < own.stop:
                begin, end = max(first, own.start) - own.start, min(last, own.stop) - own.start
                pieces.append(self._row(number)[begin:end])
        return np.concatenate(pieces)

    def _row(self, number: int) -> Ids:
        if self._kept[0] != number:
            blocks = range(self.parts.blocks)
            found = [self.parts.read("ids", block, number) for block in blocks]
            self._kept = number, np.concatenate(found, axis=1)
        return self._kept[1]


def name_job(*facts: object, models: Sequence[Path]) -> str:
    """Return a digest of what a mask depends on: the files of its networks, and other facts."""
    digest = hashlib.sha256(json.dumps(facts, default=str).encode("utf-8", "surrogatepass"))
    for path in models:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
