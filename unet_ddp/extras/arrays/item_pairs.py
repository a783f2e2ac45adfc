"""Items of a data set as pairs: each is read as a file, which lasts as long as it is read."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from unet_ddp.data.pairs import Pair, Pairs, Stamp, Stamps
from unet_ddp.errors import UserError, hides_bars
from unet_ddp.extras.arrays.item_kind import OPENED
from unet_ddp.extras.arrays.items import Item, Items
from unet_ddp.files import temporary_folder, write_errors

_ADVICE = "make room, or set TMPDIR to another folder"
_MASK = "mask.npy"
_UNKNOWN: Stamps = (None, None)


class ItemPairs(Pairs):
    """Pairs of which some, or all, are items of data sets in `OPENED`."""

    def __reduce__(self) -> tuple[Any, ...]:
        keys = {pair.image.parts[0] for pair in self}
        return _restore, ([*self], {key: OPENED[key] for key in keys & OPENED.keys()})

    def share(self) -> None:
        """Prepare for processes that share this one's memory: none inherits an open database; see `Pairs.share`."""
        super().share()
        for items in OPENED.values():
            items.close()
        known = [[stamp or (-1, -1) for stamp in pair.stamps] for pair in self]
        self._stamps = np.array(known, np.int64).reshape(-1, 2, 2)

    def to_read(self, row: int) -> Pair:
        """Return the paths and stamps of a pair, without a name, after `share`."""
        image, mask = (_as_stamp(stamp) for stamp in self._stamps[row].tolist())
        return replace(super().to_read(row), stamps=(image, mask))

    @contextmanager
    def local(self, path: Path, ignore: int | None = None) -> Iterator[Path]:
        """Yield the file, or a temporary one of an item's array; an error names `path`."""
        if path.parts[0] not in OPENED:
            yield path
            return
        item = _read(path)
        place = temporary_folder()
        with write_errors(place, _ADVICE):
            file = tempfile.NamedTemporaryFile(prefix="unet_ddp-", suffix=path.suffix, dir=place)  # noqa: SIM115
        with file:
            with write_errors(place, _ADVICE):
                if path.name == _MASK:
                    np.save(file, item.mask)
                else:
                    item.write_image(file)
                file.flush()
            try:
                yield Path(file.name)
            except UserError as error:
                raise type(error)(str(error).replace(file.name, str(path))) from None


def _as_stamp(stamp: list[int]) -> Stamp | None:
    return (stamp[0], stamp[1]) if stamp[0] >= 0 else None


def _restore(pairs: list[Pair], opened: dict[str, Items]) -> ItemPairs:
    """Return the pairs in another process, which opens their data sets itself."""
    for items in opened.values():
        _begin(items)
    return ItemPairs(pairs)


def _begin(items: Items) -> None:
    """Read pairs of these items from now on, and close what an earlier call has opened."""
    if items.key in OPENED:
        OPENED[items.key].close()
    _last.pop(items.key, None)
    OPENED[items.key] = items


_last: dict[str, tuple[int, Item]] = {}
"""By data set, the item that was read last: its mask is asked for after its image."""


def _read(path: Path) -> Item:
    """Return the item of a path, as `find_items` makes it."""
    key, row, _ = path.parts
    before = _last.get(key)
    if before is None or before[0] != int(row):
        items = OPENED[key]
        before = int(row), items.read(int(row), int(row) + 1)
        _last[key] = before
    return before[1]


def find_items(items: Items) -> ItemPairs:
    """Return all items as pairs, each read once for its name and a checksum, which is its stamp.

    An item that can't be read is a pair without stamps: the scan says why.

    Raises:
        UserError: there is none, two have one name, or an item differs when it is read again.
    """
    _begin(items)
    count = len(items)
    read = partial(items.read, count=count)
    pairs, rows = list[Pair](), dict[str, int]()
    for row in tqdm(range(count), "reading", unit="item", leave=False, disable=hides_bars()):
        image, mask = (Path(items.key, str(row), name) for name in ("image.npy", _MASK))
        name, stamps = f"{row:0{len(str(count - 1))}d}", _UNKNOWN
        try:
            item = read(row)
        except UserError:
            pairs.append(Pair(name, image, mask, stamps=stamps))
            continue
        stamps = find_stamps(item)
        if not rows and find_stamps(read(row)) != stamps:
            raise UserError(
                f"{items.key}[{row}]: differs when it is read again, so a run could not be repeated; give the data "
                "as they are, and random changes to --augmentation"
            )
        refuse_twice(items.key, rows, item.name, row)
        pairs.append(Pair(item.name, image.with_suffix(item.suffix), mask, stamps=stamps))
    return ItemPairs(sorted(pairs, key=lambda pair: pair.name))


def refuse_twice(key: str, rows: dict[str, int], name: str, row: int) -> None:
    """Note the row of a name, which must be new."""
    if name in rows:
        raise UserError(
            f"{key}: items {rows[name]} and {row} have one name, {name!r}; give each its own"
        )
    rows[name] = row


def find_stamps(item: Item) -> tuple[Stamp, Stamp]:
    """Return checksums and sizes in bytes of image and mask."""
    return _find_stamp(item.image, "alpha " if item.has_alpha else ""), _find_stamp(item.mask)


def _find_stamp(array: NDArray[Any], kind: str = "") -> Stamp:
    digest = hashlib.blake2b(f"{kind}{array.dtype.str} {array.shape} ".encode(), digest_size=8)
    digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest(), "big") >> 4, array.nbytes
