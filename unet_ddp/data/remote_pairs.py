"""Pairs of which images or masks are objects in storage, of any scheme."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from unet_ddp.data.pairs import Pair, Pairs, Stamp
from unet_ddp.errors import UnreachableError, UserError, hides_bars
from unet_ddp.files import is_address
from unet_ddp.storage import Storage, fetch_ahead, local_file, storage_of

_AT_ONCE = 32  # objects that are looked for


class RemotePairs(Pairs):
    """Pairs with objects in storage, perhaps among files of this machine."""

    @property
    def storage(self) -> Storage | None:
        """The storage of the first address; None if `find` has found no object."""
        files = (file for pair in self for file in (pair.image, pair.mask))
        return next(map(storage_of, filter(is_address, files)), None)

    def find(self, problems: list[str]) -> Pairs:
        """Return those whose files are there, with the stamps of objects; the others are problems."""
        files = [file for pair in self for file in (pair.image, pair.mask)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            bar = tqdm(
                pool.map(_find, files), "finding", len(files), leave=False, disable=hides_bars()
            )
            stamps = list(bar)
        kept = []
        for pair, image, mask in zip(self, stamps[::2], stamps[1::2], strict=True):
            problems += [str(error) for error in (image, mask) if isinstance(error, UserError)]
            if not isinstance(image, UserError) and not isinstance(mask, UserError):
                kept.append(replace(pair, stamps=(image, mask)))
        return RemotePairs(kept)

    def share(self) -> None:
        """Do nothing: a client's threads do not survive a fork, so that no process shares memory."""

    def to_read(self, row: int) -> Pair:
        """Return a pair."""
        return self[row]

    def local(self, path: Path, ignore: int | None = None) -> AbstractContextManager[Path]:
        """Return a context with a copy of an object, or with the file of this machine."""
        return local_file(path)

    def fetch_ahead(self, paths: Iterable[Path]) -> None:
        """Begin to fetch objects that are needed next, and drop the objects of an earlier call."""
        fetch_ahead(paths)


def _find(path: Path) -> Stamp | UserError | None:
    """Return the stamp of an object, or why it has none; None for a file of this machine."""
    try:
        return None if type(path) is type(Path()) else storage_of(path).find_stamp(path)
    except UnreachableError:
        raise
    except (UserError, OSError) as error:
        return error if isinstance(error, UserError) else UserError(f"{path}: not found")
