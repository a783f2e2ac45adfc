"""The content of a pack's index, checked: a stranger's pack is trained on, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from unet_ddp.checks.scan import THUMBNAIL
from unet_ddp.config import DataConfig
from unet_ddp.data.pairs import SIDES, FileKind
from unet_ddp.data.readers.base import DTYPES
from unet_ddp.errors import Limit, UserError, from_plain, shorten
from unet_ddp.extras.packs.pack_columns import StoredColumn

ROWS = 1 << 18
"""That are checked at a time."""
_TEXTS = ("name", "group", "source")
_OF_LISTS = {"group", "group_end", "source", "source_end", "side"}  # only if a list names them
_COLUMNS = {  # types and shapes
    "kind": ("<u4", ()), "thumbnail": ("|u1", (THUMBNAIL**2,)), "moments": ("<f8", None), "end": ("<i8", ()),
    "value": ("<i4", ()), "pixels": ("<u4", ()), "place": ("<u4", (4,)), "name": ("|u1", ()), "name_end": ("<i8", ()),
    "group": ("|u1", ()), "group_end": ("<i8", ()),
    "source": ("|u1", ()), "source_end": ("<i8", ()), "side": ("|u1", ()),
}  # fmt: skip

_Count = Annotated[int, Limit(at_least=0)]
Columns = Mapping[str, StoredColumn]


@dataclass(frozen=True)
class Shard:
    """A file of a pack."""

    size: _Count  # bytes
    sha256: str
    first: _Count  # row of its first pair


@dataclass(frozen=True)
class PackIndex:
    """The plain values of an index."""

    kinds: list[FileKind]
    shards: list[Shard]
    attempt: str  # at the beginning of the shards' names
    mark: Annotated[str, ("", ".mask")]  # at the end of the masks' names
    validation: _Count  # pairs at the end that are of a validation folder
    nodata: float | None  # of the scan, as are the channels
    channels: int | None
    class_names: tuple[str, ...] = ()  # of folders, of which a mask's value has a bit each
    readers: tuple[str, ...] = ()  # of the user's own, as --reader names them
    overlap: bool = False  # as the masks were checked, like the next three
    instances: bool = False
    ignore_index: int | None = None
    mask_threshold: int | None = None

    def __post_init__(self) -> None:
        """Refuse names of other files, and images that no scan finds."""
        if not re.fullmatch("([0-9a-f]{8}-)?", self.attempt):
            raise UserError(f"attempt: {shorten(self.attempt)}")
        for image in (kind.image for kind in self.kinds):
            if image.dtype not in DTYPES or min(*image.size, image.channels) < 1:
                raise UserError(f"kinds: {shorten(image.dtype)}, {image.width}x{image.height}")


def check_settings(place: Path, index: PackIndex, config: DataConfig) -> None:
    """Raise a UserError if the masks of the pack at `place` would be read as other classes than those packed.

    Numbered objects may become one class, a palette names the value to ignore, and settings that exclude a threshold
    may replace it.
    """
    gone, void = [], index.ignore_index
    if (index.overlap or index.class_names) and not config.overlap:
        gone.append("--overlap")
    if index.instances and not config.instances and config.mask_threshold is None:
        gone.append("--instances")
    if void not in (None, config.ignore_index) and config.palette is None:
        now = "" if config.ignore_index is None else f" (not {config.ignore_index})"
        gone.append(f"--ignore-index {void}{now}")
    others = config.mask_threshold, config.classes, config.palette
    is_read = config.overlap or config.instances or others != (None, None, None)
    if index.mask_threshold is not None and not is_read:
        gone.append(f"--mask-threshold {index.mask_threshold}")
    if gone:
        raise UserError(
            f"{place}: its masks were packed with {' '.join(gone)}; give the same, or pack the images again"
        )


def check_index(path: Path, plain: Mapping[str, Any], columns: Columns | None) -> PackIndex:
    """Return the plain values of the index `path`, typed; columns that were checked before are None.

    Raises:
        UserError: the values or columns are none that `pack` writes.
    """
    try:
        index = from_plain(PackIndex, plain, is_open=True)
        if columns is not None and not _fit_together(index, columns):
            raise UserError("its columns do not fit together")
    except UserError as error:
        raise UserError(
            f"{path}: corrupt, or of another version of unet_ddp ({error}); pack the images again"
        ) from None
    return index


def _fit_together(index: PackIndex, columns: Columns) -> bool:
    firsts = [shard.first for shard in index.shards]
    rows = columns["kind"].shape[0] if "kind" in columns else 0
    return (
        _COLUMNS.keys() - _OF_LISTS <= columns.keys()
        and all(_is_typed(name, column, rows) for name, column in columns.items())
        and columns["value"].shape == columns["pixels"].shape
        and _rises(columns["end"], columns["value"].shape[0])
        and all(_is_text(columns, name) for name in _TEXTS if name in columns)
        and firsts[:1] == [0]
        and bool((np.diff([*firsts, rows]) > 0).all())
        and _is_below(columns["kind"], len(index.kinds))
        and ("side" not in columns or _is_below(columns["side"], len(SIDES)))
        and index.validation < rows
    )


def _is_typed(name: str, column: StoredColumn, rows: int) -> bool:
    """Return whether a column has its type and shape."""
    dtype, shape = _COLUMNS.get(name, ("", ()))
    if column.dtype.str != dtype:
        return False
    if shape is None:  # of moments, whose number depends on the channels
        shape = column.shape[1:2]
    is_whole = name in ("value", "pixels", *_TEXTS) or column.shape[0] == rows
    return column.shape[1:] == shape and is_whole


def _is_below(column: StoredColumn, limit: int) -> bool:
    for start in range(0, column.shape[0], ROWS):
        if (column[start : start + ROWS] >= limit).any():
            return False
    return True


def _rises(ends: StoredColumn, last: int) -> bool:
    """Return whether a column rises to `last`."""
    before = 0
    for start in range(0, ends.shape[0], ROWS):
        block = ends[start : start + ROWS]
        if (np.diff(block, prepend=before) < 0).any():
            return False
        before = int(block[-1])
    return before == last


def _is_text(columns: Columns, name: str) -> bool:
    """Return whether a column has one text for each row, each ended by a zero byte."""
    texts, ends = columns[name], columns.get(f"{name}_end")
    if ends is None:
        return False
    before = 0
    for start in range(0, ends.shape[0], ROWS):
        block = ends[start : start + ROWS]
        found = np.flatnonzero(texts[before : int(block[-1])] == 0)
        if not np.array_equal(found + before + 1, block):
            return False
        before = int(block[-1])
    return before == texts.shape[0]
