"""Buckets, and web servers to read from, as the core has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import objects
from unet_ddp.extras.cloud.address import COLLAPSED, PART
from unet_ddp.extras.cloud.ranges import open_parts
from unet_ddp.extras.cloud.remote import Url, replacing_object, working_folder
from unet_ddp.storage import Storage

if TYPE_CHECKING:
    from torch.utils.data import Sampler

    from unet_ddp.config import TrainConfig
    from unet_ddp.data.dataset import SegmentationDataset
    from unet_ddp.data.samplers import Key
    from unet_ddp.extras.cloud.mirror import CloudMirror


class ObjectStorage(Storage):
    """Buckets and web servers, by obstore; files in archives of this machine are read alike.

    Methods import the modules that need torch: other methods are used without it.
    """

    def open(self, text: str) -> Path:
        """Return a `Url`; an ordinary path of a text that is neither an address nor a file in an archive."""
        if "://" not in text and (COLLAPSED.match(text) or not PART.fullmatch(text)):
            return Path(text)  # http:/host is a folder
        if text.startswith("http") and "?" in text:  # obstore takes no query
            raise UserError(
                f"{text.partition('?')[0]}: an address with a query, as a signed one, can't be read; use "
                "s3://, gs:// or az:// with keys in the environment, or download the file"
            )
        if not text.startswith("http") and "//" in text.partition("://")[2]:
            raise UserError(
                f"{text}: a key with an empty part (//) can't be read; correct the address, or copy the "
                "object to another key"
            )
        return Url(text)

    def open_parts(self, path: Path) -> IO[bytes]:
        """Return an object as a file to read."""
        return open_parts(path)

    def replacing(self, path: Path) -> AbstractContextManager[Path]:
        """Return a context of a temporary file, which is uploaded to `path` at its end."""
        return replacing_object(path)

    def check_writable(self, folder: Path, flag: str) -> None:
        """Raise a UserError unless objects can be put below an address, as far as it says by listing."""
        objects.check_answers(folder, flag)

    def find_stamp(self, path: Path) -> tuple[int, int]:
        """Return size in bytes and time (ns) of an object, or of a file in an archive."""
        return objects.find_stamp(path)

    def list_objects(self, folder: Path) -> Iterator[tuple[str, int, int]]:
        """Yield the key below `folder`, size in bytes and time (ns) of each object in it."""
        return objects.list_objects(folder)

    def fetch_ahead(self, paths: Iterable[Path]) -> None:
        """Begin to read objects, several at once, and keep them in memory for whoever reads them."""
        objects.fetch_ahead(paths)

    def read_ahead(
        self, dataset: SegmentationDataset, sampler: Sampler[Key], *, batch_size: int, workers: int
    ) -> dict[str, Any]:
        """Return a DataLoader's arguments: the samples, their batches, and what forks its processes."""
        from unet_ddp.extras.cloud.reading import how_to_read

        return how_to_read(dataset, sampler, batch_size=batch_size, workers=workers)

    def run_folder(self, address: Path) -> Path:
        """Return the folder of this machine for the run at an address, in the user's cache."""
        return working_folder(address)

    def mirror(self, config: TrainConfig, log: Callable[[str], None]) -> CloudMirror:
        """Return the mirror of the run at `config.address`."""
        from unet_ddp.extras.cloud.mirror import CloudMirror

        return CloudMirror(config, log)

    def copy_run(self, address: Path) -> AbstractContextManager[Path]:
        """Return a context of a copy of the run at an address."""
        from unet_ddp.extras.cloud.report import local_run

        return local_run(address)
