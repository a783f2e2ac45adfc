"""Metadata of all pairs of a data set, in columns: of scanned files, or from the index of a pack."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unet_ddp.checks.metadata import ImageMetadata, ScannedPair
from unet_ddp.checks.scan import THUMBNAIL
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Flags, Size
from unet_ddp.data.pairs import FileKind, Pair, Pairs, collect
from unet_ddp.storage import real_file

BLOCK = 1 << 18
"""Pairs whose columns are in memory at a time."""


class ValueCount(NamedTuple):
    """The pixels of one value in the masks of one kind."""

    row: int  # of the first pair that has it
    kind: int
    value: int
    pixels: int


@dataclass(frozen=True, eq=False)
class Table:
    """Metadata of pairs; its columns are arrays, or read slice by slice from a file."""

    pairs: Pairs
    kinds: list[FileKind]  # all different, in the order of their first pairs
    columns: Mapping[str, Any]
    """`kind` (N,): index into `kinds`. `thumbnail` (N, 64): uint8, zeros for an image of one colour.

    `moments` (N, 3 + 2 C): float64 pixels, low, high, sums and sums of squares; (N, 0) for 8 bit.
    `value` (V,) and `pixels` (V,): each mask's values, and the pixels of each. `end` (N,): the end of
    a pair's part of these two.
    """
    hidden: tuple[int, ...] = ()  # rows of masks that hide a shape; see `Source.hides_shape`

    @classmethod
    def from_scan(cls, scanned: Sequence[ScannedPair]) -> Table:
        """Return the table of scanned files."""
        kinds: dict[FileKind, int] = {}
        column = np.zeros(len(scanned), np.uint32)
        thumbnails = np.zeros((len(scanned), THUMBNAIL**2), np.uint8)
        values: list[int] = []
        counts: list[int] = []
        ends: list[int] = []
        for row, (pair, image, mask) in enumerate(scanned):
            suffixes = (real_file(pair.image).suffix, real_file(pair.mask).suffix)
            kind = FileKind(suffixes, image.header, mask.header)
            column[row] = kinds.setdefault(kind, len(kinds))
            if image.thumbnail:
                thumbnails[row] = np.frombuffer(base64.b64decode(image.thumbnail), np.uint8)
            values += mask.values
            counts += mask.counts
            ends.append(len(values))
        columns = {
            "kind": column,
            "thumbnail": thumbnails,
            "moments": _collect_moments([image for _, image, _ in scanned]),
            "end": np.array(ends, np.int64),
            "value": np.array(values, np.int32),
            "pixels": np.array(counts, np.uint32),
        }
        hidden = tuple(row for row, each in enumerate(scanned) if each.mask.hides_shape)
        return cls(collect(pair for pair, _, _ in scanned), list(kinds), columns, hidden)

    def with_values_of(self, labels: Labels) -> Table:
        """Return the table of colour or palette masks as `Source.mask` reads them with labels of greys or indices.

        Raises:
            UserError: a mask has a colour of none of them.
        """
        if labels.rgb or labels.may_overlap:
            return self
        if not all(kind.mask.has_colour_values for kind in self.kinds):
            return self._with_indices_of(labels) if labels.palette else self
        values = self.columns["value"][:].copy()
        for _, part, row in self.value_blocks():
            colours, firsts, places = np.unique(
                values[part], return_index=True, return_inverse=True
            )
            masks = [self.pairs[each].mask for each in row[firsts].tolist()]
            values[part] = np.array([*map(labels.from_colours, colours, masks)], np.int32)[places]
        kinds = [
            replace(kind, mask=replace(kind.mask, channels=1, is_colour=False))
            for kind in self.kinds
        ]
        return replace(self, kinds=kinds, columns={**self.columns, "value": values})

    def _with_indices_of(self, labels: Labels) -> Table:
        """Return the table of palette masks with the indices of labels."""
        values, kinds = self.columns["value"][:].copy(), list(self.kinds)
        indices = np.arange(256, dtype=np.uint8)
        orders = {
            k: labels.from_indices(indices, kind.mask.palette)
            for k, kind in enumerate(kinds)
            if kind.mask.palette
        }
        orders = {k: order for k, order in orders.items() if order is not indices}
        for k in orders:
            kinds[k] = replace(kinds[k], mask=replace(kinds[k].mask, palette=labels.palette))
        for rows, part, row in self.value_blocks():
            column, block = self.columns["kind"][rows][row - rows.start], values[part]
            for k, order in orders.items():
                block[column == k] = order[block[column == k]]
        return replace(self, kinds=kinds, columns={**self.columns, "value": values})

    @cached_property
    def groups(self) -> list[tuple[FileKind, int, Pair]]:
        """Each kind, the number of its pairs, and the first."""
        kinds = self.columns["kind"][:]
        counts = np.bincount(kinds, minlength=len(self.kinds))
        rows = np.arange(len(kinds), dtype=np.uint32)
        first_rows = np.zeros(len(self.kinds), np.uint32)  # np.unique would sort ten million
        first_rows[kinds[::-1]] = rows[::-1]  # the last one stays
        firsts = [self.pairs[row] for row in first_rows.tolist()]
        return list(zip(self.kinds, counts.tolist(), firsts, strict=True))

    @property
    def sizes(self) -> Counter[Size]:
        """Number of images of each (height, width)."""
        sizes: Counter[Size] = Counter()
        for kind, count, _ in self.groups:
            sizes[kind.image.size] += count
        return sizes

    def rows_of(self, pairs: Pairs) -> NDArray[np.uint32]:
        """Return the rows in this table of `pairs`, in their order; it may lack some."""
        if pairs.scanned is not None:
            return pairs.scanned.rows
        rows = {name: row for row, name in enumerate(self.pairs.names())}
        return np.array([rows[name] for name in pairs.names() if name in rows], np.uint32)

    def find(self, pairs: Pairs) -> Flags:
        """Return for each row if it is one of `pairs`."""
        chosen = np.zeros(len(self.pairs), bool)
        chosen[self.rows_of(pairs)] = True
        return chosen

    def blocks(self, name: str, chosen: Flags) -> Iterator[NDArray[Any]]:
        """Yield the chosen rows of a column, block by block."""
        for start in range(0, len(chosen), BLOCK):
            rows = slice(start, start + BLOCK)
            if chosen[rows].any():
                yield self.columns[name][rows][chosen[rows]]

    @cached_property
    def values(self) -> list[ValueCount]:
        """The values of all masks."""
        return self.count_values(np.ones(len(self.pairs), bool))

    def count_values(self, chosen: Flags) -> list[ValueCount]:
        """Return the values in the chosen masks, in the order of their first rows."""
        found: dict[tuple[int, int], ValueCount] = {}
        for rows, part, row in self.value_blocks():
            keep = chosen[row]
            row = row[keep]
            kind = self.columns["kind"][rows][row - rows.start].astype(np.int64)
            value = self.columns["value"][part][keep].astype(np.int64)
            key = kind << 32 | value & 0xFFFFFFFF
            _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
            totals = np.bincount(inverse, self.columns["pixels"][part][keep]).astype(np.int64)
            columns = row[first], kind[first], value[first], totals
            for entry in map(ValueCount, *(column.tolist() for column in columns)):
                known = found.get(entry[1:3], entry._replace(pixels=0))
                found[entry[1:3]] = known._replace(pixels=known.pixels + entry.pixels)
        return sorted(found.values())

    def value_blocks(self) -> Iterator[tuple[slice, slice, NDArray[np.int64]]]:
        """Yield blocks of rows, their parts of the columns value and pixels, and the row of each."""
        begin = 0
        for start in range(0, len(self.pairs), BLOCK):
            rows = slice(start, min(start + BLOCK, len(self.pairs)))
            ends = self.columns["end"][rows]
            row = np.repeat(np.arange(start, rows.stop), np.diff(ends, prepend=begin))
            end = int(ends[-1])
            yield rows, slice(begin, end), row
            begin = end


def _collect_moments(images: Sequence[ImageMetadata]) -> NDArray[np.float64]:
    """Return the statistics (N, 3 + 2 C) of images, (N, 0) if none has any; grey counts C times."""
    channels = max((len(image.sums) for image in images), default=0)
    if channels == 0:
        return np.zeros((len(images), 0))
    moments = np.zeros((len(images), 3 + 2 * channels))
    sums = moments[:, 3 : 3 + channels]
    squares = moments[:, 3 + channels :]
    for row, image in enumerate(images):
        if image.num_pixels and len(image.sums) in (1, channels):  # else the set is unfit
            moments[row, :3] = image.num_pixels, image.low, image.high
            sums[row] = image.sums
            squares[row] = image.squares
    return moments
