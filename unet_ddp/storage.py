"""Storage at addresses, as s3://bucket/folder: a class for each kind, found by the address's scheme."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from unet_ddp.errors import USERINFO, UserError, one_line
from unet_ddp.plugins import find, is_built_in, is_own, list_names

if TYPE_CHECKING:
    from torch.utils.data import Sampler

    from unet_ddp.config import TrainConfig
    from unet_ddp.data.dataset import SegmentationDataset
    from unet_ddp.data.samplers import Key
    from unet_ddp.runs.mirror import Mirror

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30})://")  # as RFC 3986 has it
_PART = re.compile(r"(.+)#[^/#]*\.(?:window|polygons)", re.DOTALL)


class Storage(ABC):
    """The objects at the addresses of a scheme, as extras/cloud/storage.py has them; a path's text is its address.

    Methods raise a UserError of one line, which names the address.
    """

    @abstractmethod
    def open(self, text: str) -> Path:
        """Return the path of an object, which is fetched when it is opened."""

    def open_parts(self, path: Path) -> IO[bytes]:
        """Return an object as a file to read, better without fetching all of a large one."""
        return path.open("rb")

    @abstractmethod
    def replacing(self, path: Path) -> AbstractContextManager[Path]:
        """Return a context of a temporary file, which is put at `path` at its end."""

    @abstractmethod
    def check_writable(self, folder: Path, flag: str) -> None:
        """Raise a UserError, which names `flag`, if objects can't be put below an address."""

    @abstractmethod
    def find_stamp(self, path: Path) -> tuple[int, int]:
        """Return size in bytes and time (ns) of an object, which change when it is put again."""

    @abstractmethod
    def list_objects(self, folder: Path) -> Iterator[tuple[str, int, int]]:
        """Yield the name below `folder`, size and time of each object, in its sub-folders too."""

    @abstractmethod
    def fetch_ahead(self, paths: Iterable[Path]) -> None:
        """Begin to fetch objects that are needed next, and drop the objects of an earlier call."""

    @abstractmethod
    def read_ahead(
        self, dataset: SegmentationDataset, sampler: Sampler[Key], *, batch_size: int, workers: int
    ) -> dict[str, Any]:
        """Return the arguments of a DataLoader that fetches the objects of its next batches."""

    @abstractmethod
    def run_folder(self, address: Path) -> Path:
        """Return the folder of this machine for the run at an address."""

    @abstractmethod
    def mirror(self, config: TrainConfig, log: Callable[[str], None]) -> Mirror:
        """Return what brings a run's folder to the state at its address, and puts its files there."""

    @abstractmethod
    def copy_run(self, address: Path) -> AbstractContextManager[Path]:
        """Return a context of a folder with a run's files; the report in it is put at its end."""


_storages: dict[type[Storage], Storage] = {}  # that this process has met


def open_address(text: str) -> Path:
    """Return the path of an object at an address, or of a file in an archive; else an ordinary path.

    Raises:
        UserError: the scheme is not known, or the address contains a password.
    """
    if USERINFO.match(text):
        raise UserError(
            f"{one_line(text)}: a name or password in an address would be in the run's files; use keys in the "
            "environment, or download the file"
        )
    if text.startswith("file://"):
        text = str(Path(text[7:]))  # without //: what follows is no address
    is_here = not _SCHEME.match(text) and ".tar#" not in text
    return Path(text) if is_here else storage_of(text).open(text)


def real_file(path: Path) -> Path:
    """Return the file of which a path names a part, as scene.tif of scene.tif#0+0+512+512.window; else the path."""
    while found := _PART.fullmatch(str(path)):
        path = open_address(found[1])
    return path


@contextmanager
def local_file(path: Path) -> Iterator[Path]:
    """Yield a file of this machine with the content of `path`: a copy of an object, removed after it.

    Raises:
        UserError: the object can't be read; what the block raises, naming the object.
    """
    source = open_address(str(path))  # a path of its own: the copy goes with it
    copy = Path(os.fspath(source))  # downloads it
    try:
        yield copy
    except UserError as error:
        raise type(error)(str(error).replace(str(copy), str(path))) from None


def open_parts(path: Path) -> IO[bytes]:
    """Return a file to read; of a large object, only the parts that are read are fetched."""
    is_here = not _SCHEME.match(str(path))
    return path.open("rb") if is_here else storage_of(path).open_parts(path)


def storage_of(address: Path | str) -> Storage:
    """Return the storage of an address, or of a file in an archive of this machine.

    Raises:
        UserError: no storage has the address's scheme.
    """
    found = _SCHEME.match(str(address))
    scheme = found[1] if found else ""
    if not is_built_in("storage", scheme) and not is_own("storage", scheme):
        known = ", ".join(f"{each}://" for each in list_names("storage") if each)
        raise UserError(f"{address}: {scheme}:// is not known; use {known} or a path")
    kind = find("storage", scheme)
    if kind not in _storages:
        _storages[kind] = kind()
    return _storages[kind]


def fetch_ahead(paths: Iterable[Path]) -> None:
    """Begin to fetch objects that are needed next, and drop the objects of an earlier call.

    Files of this machine are ignored.
    """
    wanted: dict[Storage, list[Path]] = {storage: [] for storage in _storages.values()}
    for path in paths:
        if _SCHEME.match(str(path)):
            wanted.setdefault(storage_of(path), []).append(path)
    for storage, objects in wanted.items():
        storage.fetch_ahead(objects)
