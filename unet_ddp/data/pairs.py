"""Sets of pairs of image and mask."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.masks import Flags
from unet_ddp.data.readers.base import Header
from unet_ddp.plugins import find
from unet_ddp.plugins.built_in import BUILT_IN
from unet_ddp.storage import Storage, real_file

if TYPE_CHECKING:
    from unet_ddp.config import DataConfig
    from unet_ddp.data.matching import Report
    from unet_ddp.data.splits import Split

SIDES = ("", "training", "validation", "left out")

CLASSES_MARK = "*"
"""Part of a mask's path that stands for a folder for each class: masks/*/x.png."""

Stamp = tuple[int, int]
"""Size in bytes and time (ns) of a file."""

Stamps = tuple[Stamp | None, Stamp | None]  # of image and mask


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    name: str  # the image's path below its folder, without suffix: identifies the pair everywhere
    image: Path
    mask: Path
    group: str | None = None  # if a list gives one
    side: str | None = None  # training, validation or left out, if a list says so
    stamps: Stamps = (None, None)  # of files that are not this machine's, as they were found
    source: str | None = None  # where the image is from, if a list says so
    inside: tuple[int, int] | None = None  # (row, column) of a smaller mask in its image


Column = Literal["name", "group", "source", "side"]
"""A text that each pair has, or that a list may give it."""


@dataclass(frozen=True)
class FileKind:
    """The properties that the files of many pairs share."""

    suffixes: tuple[str, str]  # of image and mask
    image: Header
    mask: Header


def find_stamp(path: Path) -> Stamp:
    """Return size in bytes and time (ns) of a file of this machine, which change when it changes.

    Raises:
        OSError: it can't be found.
    """
    status = real_file(path).stat()
    return status.st_size, status.st_mtime_ns


class Scan(Protocol):
    """A scan of a set that is kept with it, and its place for some of the set's pairs: of a pack."""

    rows: NDArray[np.uint32]
    """The rows of the pairs in the table."""

    @property
    def table(self) -> Any:
        """The `Table` of the whole set."""

    def divide(self, config: DataConfig) -> tuple[Pairs, Pairs | None]:
        """Return the pairs to train on, and the pairs of a validation folder that were scanned with them.

        Raises:
            UserError: the scan was made with other settings, or files are missing.
        """

    def check_content(self) -> None:
        """Raise a UserError if a file that no scan reads any more is corrupt."""


class Pairs(Sequence[Pair]):
    """A set of pairs: here of files of this machine; subclasses are of other places.

    They are RemotePairs (data/remote_pairs.py), PackedPairs (extras/packs/pairs.py), and others in extras/arrays,
    extras/overlap, extras/polygons and extras/windows.
    """

    group_rule = ""
    """The words for how `groups` were found, where nothing else is to find any."""

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._pairs = list(pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, row: int) -> Pair: ...
    @overload
    def __getitem__(self, row: slice) -> Pairs: ...
    def __getitem__(self, row: int | slice) -> Pair | Pairs:
        return collect(self._pairs[row]) if isinstance(row, slice) else self._pairs[row]

    @property
    def storage(self) -> Storage | None:
        """The storage from which files are fetched to read them: of `RemotePairs`; None for files of this machine."""
        return None

    @property
    def scanned(self) -> Scan | None:
        """The earlier scan of the set that these are part of; None for files."""
        return None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes where the masks' place gives them: of bits of their values, or of values from 1 on."""
        return ()

    def texts(self, column: Column) -> Iterator[str]:
        """Yield a column of the pairs; empty where no list gives any."""
        return (text or "" for text in map(attrgetter(column), self))

    def names(self) -> Iterator[str]:
        """Yield the names."""
        return self.texts("name")

    def groups(self) -> Iterator[str] | None:
        """Return the groups that a list gave, or the names of pairs without; None if it gave none."""
        if not any(self.texts("group")):
            return None
        return (
            group or name for group, name in zip(self.texts("group"), self.names(), strict=True)
        )

    def sides(self) -> NDArray[np.uint8]:
        """Return the place in `SIDES` of the side that a list gave to each."""
        return np.fromiter(map(SIDES.index, self.texts("side")), np.uint8, len(self))

    def select(self, chosen: Flags) -> Pairs:
        """Return the chosen ones, sorted by name."""
        rows = np.flatnonzero(chosen).tolist()
        return collect(sorted((self[row] for row in rows), key=lambda pair: pair.name))

    def find(self, problems: list[str]) -> Pairs:
        """Return those whose files are there, with stamps; the others, of addresses, are problems."""
        return self

    def settle(self, split: Split, config: DataConfig) -> Split:
        """Return a split of these pairs as its sides are read."""
        return split

    # -- reading ---------------------------------------------------------------------------

    def share(self) -> None:
        """Prepare for processes that share this one's memory.

        To read an object writes its reference count, which would copy the memory page by page: the
        processes read paths from an array.
        """
        files = [(os.fsencode(pair.image), os.fsencode(pair.mask)) for pair in self]
        self._files = np.array(files, bytes)  # (N, 2)

    def to_read(self, row: int) -> Pair:
        """Return the paths and stamps of a pair, without a name, after `share`."""
        image, mask = self._files[row]
        return Pair("", Path(os.fsdecode(image)), Path(os.fsdecode(mask)))

    def local(self, path: Path, ignore: int | None = None) -> AbstractContextManager[Path]:
        """Return a context with a file of this machine that has the content of `path`.

        Its errors name `path`. `ignore` is the value of ignored pixels, where masks of classes become one;
        see `Labels.void`.
        """
        return nullcontext(path)

    def files_of(self, path: Path) -> Sequence[Path]:
        """Return the files of this machine whose content `path` has."""
        return [path]

    def fetch_ahead(self, paths: Iterable[Path]) -> None:
        """Begin to fetch files that are needed next, and drop the files of an earlier call."""


@dataclass(frozen=True)
class DataPaths:
    """The paths that a command was given to find pairs: two folders, a pack, or a list; and how to read them."""

    images: Path | None = None
    masks: Path | None = None
    listed: Path | None = None
    suffix: str | None = None  # that masks' names add to their images'; None: to be detected
    planes: bool = False  # masks may be in a folder for each class
    names: Sequence[str] = ()  # of the classes, if they are known already
    config: DataConfig | None = None  # of a data set that is trained on


class PairKind(ABC):
    """A kind of data set, found at its paths: PAIRS (plugins/built_in/of_data.py) has all of them.

    Each is asked, so its module imports little.
    """

    @abstractmethod
    def claims(self, paths: DataPaths) -> bool:
        """Return whether these are paths of this kind, as far as names and folders say."""

    @abstractmethod
    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return all pairs there; images without masks are problems in the report."""

    def collect(self, pairs: Sequence[Pair]) -> Pairs | None:
        """Return the set of these pairs if this kind alone can read all of their files, else None."""
        return None


def list_kinds() -> Iterator[PairKind]:
    """Yield the kinds of data sets in the order in which they are asked."""
    for name in BUILT_IN["pairs"]:
        yield find("pairs", name)()


def collect(pairs: Iterable[Pair]) -> Pairs:
    """Return the set of pairs, of the kind that can read all files."""
    found = list(pairs)
    sets = (kind.collect(found) for kind in list_kinds())
    return next(each for each in sets if each is not None)  # folders read any file
