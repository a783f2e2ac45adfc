"""Reading processes that fetch objects in storage ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch.utils.data import BatchSampler, Dataset, Sampler

from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.loaders import start_worker
from unet_ddp.data.memory import DiskStore
from unet_ddp.data.readers.read import own_readers
from unet_ddp.data.samplers import Key
from unet_ddp.distributed.stop_signal import ignore_signals_in_worker
from unet_ddp.extras.cloud.fork_server import end_with_rank, start_fork_server
from unet_ddp.extras.cloud.objects import start_reader


def how_to_read(
    dataset: SegmentationDataset, sampler: Sampler[Key], *, batch_size: int, workers: int
) -> dict[str, Any]:
    """Return a DataLoader's arguments: the samples, their batches, and what forks its processes."""
    server = start_fork_server() if workers > 0 else None
    start_reader(warns=True)  # if this process reads: rank 0 has listed the data set
    batches = AheadSampler(sampler, batch_size=batch_size, workers=workers)
    objects = {"dataset": FetchedAhead(dataset), "batch_sampler": batches}
    start = partial(_start_worker, readers=own_readers())
    return {**objects, "multiprocessing_context": server, "worker_init_fn": start}


def _start_worker(worker: int, readers: Iterable[str]) -> None:
    ignore_signals_in_worker()  # before they are let through
    end_with_rank()
    start_worker(worker, readers)
    start_reader(warns=worker == 0)


class FetchedAhead(Dataset[Any]):
    """The samples of a data set that is not on this machine; an `AheadSampler` says which to fetch."""

    def __init__(self, dataset: SegmentationDataset) -> None:
        self.dataset, self.pairs = dataset, dataset.pairs

    def __getitems__(self, batch: tuple[list[Key], list[Key]]) -> list[Any]:
        """Return the samples of a batch; the objects of the next one are fetched meanwhile."""
        keys, following = batch
        dataset, paths = self.dataset, list[Path]()
        store = cast("DiskStore | None", dataset.store)  # samples in memory are of files here
        for epoch, index in [*keys, *following]:
            pair = self.pairs.to_read(dataset.draw(epoch, index)[0] if dataset.draw else index)
            with suppress(OSError):  # a missing file, which reading it will say
                if store is None or not store.holds(pair):
                    paths += pair.image, pair.mask
        self.pairs.fetch_ahead(paths)
        return [dataset[key] for key in keys]


class AheadSampler(Sampler[tuple[list[Key], list[Key]]]):
    """Batches of keys, each with the batch that the same reading process gets next, to fetch it.

    A DataLoader deals the batches to its `workers` reading processes in turn; 0 for none.
    """

    def __init__(self, sampler: Sampler[Key], *, batch_size: int, workers: int) -> None:
        self.batches: Any = BatchSampler(sampler, batch_size, drop_last=False)  # type: ignore[arg-type]  # any key
        self.distance = max(1, workers)

    def __iter__(self) -> Iterator[tuple[list[Key], list[Key]]]:
        waiting: deque[list[Key]] = deque()
        for batch in self.batches:
            waiting.append(batch)
            if len(waiting) > self.distance:
                yield waiting.popleft(), batch
        for batch in waiting:
            yield batch, []

    def __len__(self) -> int:
        return len(self.batches)
