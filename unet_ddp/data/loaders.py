"""The loaders of a run: reading processes that fetch each rank's share of the samples."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, default_collate

from unet_ddp.config import TrainConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import PreparedData, Sample, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Size
from unet_ddp.data.memory import DiskStore, SampleMemory, share_memory
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.readers.read import own_readers, use_own_readers
from unet_ddp.data.samplers import Key, ScoringSampler, TrainingBatches, TrainingSampler
from unet_ddp.distributed.device import free_memory
from unet_ddp.distributed.sockets import make_room_for_sockets, report_unsent
from unet_ddp.distributed.stop_signal import ignore_signals_in_worker
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError, count_of
from unet_ddp.files import temporary_folder

# Of more reading processes than cores: the run's own line has their number.
warnings.filterwarnings("ignore", "This DataLoader will create")

OpenCache = Callable[[TrainConfig, Labels, ImageFormat, World], DiskStore | None]
"""Returns a cache of decoded samples; None if there can be none."""

# Ranks that --nproc spawns would spawn their reading processes too: seconds of imports for each.
FORK = "fork" if sys.platform == "linux" else None

_MAX_WORKERS = 16  # of a rank; each reads about 27 samples a second, and a GPU may take 330
_MAX_BATCH = 8  # images that validation fetches at once,
_MAX_BYTES = 2**21  # and their bytes
_CPU = torch.device("cpu")
_KEPT_SHARE = 0.1  # of the free memory: the most that decoded samples may take
_READ_TIMEOUT = 0.8  # of --timeout: a rank that hangs reading says so before the others give up


class SampleLoader:
    """Batches of a data set, fetched by reading processes that live as long as the loader.

    An unreadable file raises the same UserError with reading processes as without; a DataLoader's
    error would hold the traceback of the process.

    Args:
        dataset: the samples.
        sampler: the keys of this rank's samples.
        batch_size: samples that are fetched at once.
        workers: reading processes; 0 to read in this one.
        pin: put batches into page-locked memory.
        unbatch: yield the samples as batches of one.
        timeout: seconds to wait for a batch of a reading process; 0: no limit.
    """

    def __init__(
        self,
        dataset: SegmentationDataset,
        sampler: Sampler[Key],
        *,
        batch_size: int,
        workers: int,
        pin: bool = False,
        unbatch: bool = False,
        timeout: float = 0,
    ) -> None:
        if workers == 0:
            _limit_threads()
        self.dataset = dataset
        self.batch_size = batch_size
        self.unbatch = unbatch
        self._loader: DataLoader[Any] = DataLoader(
            **loader_arguments(dataset, sampler, batch_size=batch_size, workers=workers),
            timeout=timeout if workers > 0 else 0,
            pin_memory=pin,
            persistent_workers=workers > 0,
            collate_fn=_collate,
        )

    @property
    def forks(self) -> bool:
        """True if its next use forks reading processes."""
        return self._loader.num_workers > 0 and getattr(self._loader, "_iterator", None) is None

    def __iter__(self) -> Iterator[Sample]:
        for batch in self._loader:
            if isinstance(batch, (UserError, RunError)):
                raise batch
            if not self.unbatch:
                yield batch
                continue
            for tensors in zip(*(torch.split(tensor, 1) for tensor in batch), strict=True):
                yield Sample(*tensors)

    def close(self) -> None:
        """End the reading processes.

        The garbage collector might close their queues before it asks them to end, and then never
        stop waiting.
        """
        self.dataset.pairs.fetch_ahead([])
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def loader_arguments(
    dataset: SegmentationDataset, sampler: Sampler[Key], *, batch_size: int, workers: int
) -> dict[str, Any]:
    """Return a DataLoader's arguments: the samples, their batches, and the reading processes.

    Raises:
        UserError: no temporary folder is writable, or it can't have their sockets.
        RunError: shared memory has no room for the locks of these; a DataLoader would end in a traceback.
    """
    temporary_folder()  # in which reading processes, reports and rescued files need room
    if workers > 0:
        make_room_for_sockets()
    locks = 8 * (workers + 1) if workers > 0 else 0  # a run has two loaders
    try:
        _ = [multiprocessing.get_context(FORK).Lock() for _ in range(locks)]
    except OSError as error:
        raise RunError(
            f"no shared memory (/dev/shm) for {count_of(workers, 'reading process')}: {error.strerror}; use "
            "--workers 0, and in a container a larger --shm-size"
        ) from None
    options: dict[str, Any] = {
        "num_workers": workers,
        "worker_init_fn": partial(start_worker, readers=own_readers()),
        "generator": torch.Generator(),  # or it would draw on torch's global one
    }
    storage = dataset.pairs.storage
    if storage is not None:
        how = storage.read_ahead(dataset, sampler, batch_size=batch_size, workers=workers)
        return {**options, **how}
    return {
        **options,
        "dataset": dataset,
        "sampler": sampler,
        "batch_size": batch_size,
        "multiprocessing_context": FORK if workers > 0 else None,
    }


@dataclass(frozen=True)
class Loaders(AbstractContextManager["Loaders"]):
    """This rank's loaders; leaving the context ends their reading processes."""

    training: TrainingBatches
    validation: SampleLoader | None  # None if no images are kept for validation
    notes: list[str]  # lines for the user

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, UserError):
            return  # a reading process that hangs would be waited for
        self.training.loader.close()
        if self.validation is not None:
            self.validation.close()


def build_loaders(
    config: TrainConfig,
    data: PreparedData,
    *,
    image_format: ImageFormat,
    world: World,
    open_cache: OpenCache | None,
) -> Loaders:
    """Return the loaders of this rank, with a cache of samples if there is one; the batch size is a number by now."""
    options = config.optimization
    assert isinstance(options.batch_size, int)
    count, per_step = len(data.split.training), options.batch_size * options.accumulate
    shard, steps = {"rank": world.rank, "size": world.size}, options.epoch_steps
    sampler = TrainingSampler(count, per_step, **shard, seed=options.seed, steps=steps, order=data.order)  # fmt: skip
    cache = open_cache(config, data.labels, image_format, world) if open_cache else None
    notes = [f"cache: {cache.folder}"] if cache else []
    read = partial(
        SegmentationDataset, labels=data.labels, image_format=image_format, scale=config.data.scale,
        resize_masks=config.data.resize_masks, store=cache,
    )  # fmt: skip
    workers = count_workers(world, config.launch.workers)
    timeout = _READ_TIMEOUT * config.launch.timeout
    load = partial(SampleLoader, workers=workers, pin=world.device.type == "cuda", timeout=timeout)
    preset = config.data.augmentation
    random = None
    if preset != "none" or data.crop_size is not None:
        random = Augmentation(
            image_format, preset, data.crop_size, seed=options.seed, cut=data.cut, num_classes=data.labels.num_ids
        )  # fmt: skip
    size = None if data.crop_size else data.smallest
    training = read(data.split.training, size=size, augmentation=random, draw=data.draw)
    validation = None
    images = read(data.split.validated, size=data.one_size)
    if len(images):
        batch_size = _validation_batch(image_format, data.one_size)
        own = ScoringSampler(len(images), **shard)
        validation = load(images, own, batch_size=batch_size, unbatch=True)
    keep_in_memory([training, images], data.most_pixels, world)
    loader = load(training, sampler, batch_size=options.batch_size)
    return Loaders(TrainingBatches(loader, sampler, options.epochs), validation, notes)


def keep_in_memory(datasets: list[SegmentationDataset], pixels: int, world: World) -> None:
    """Have data sets of files keep their samples, if they all fit into a share of the free memory.

    Only forked reading processes share it; and two of them may read a drawn image at the same time.
    """
    image_format = datasets[0].image_format
    here = [each for each in datasets if len(each) and each.pairs.storage is None]
    kept = [each for each in here if each.store is None and each.draw is None]
    how: dict[str, Any] = {"pixels": pixels, "num_ids": datasets[0].labels.num_ids}
    needed = [SampleMemory.needed(len(one), image_format, **how) for one in kept]
    if FORK is None or sum(needed) > _KEPT_SHARE * free_memory(_CPU):
        needed = []
    for dataset, memory in zip(kept, share_memory(needed, world), strict=False):
        dataset.store = SampleMemory(memory, image_format, **how)


def _validation_batch(image_format: ImageFormat, size: Size | None) -> int:
    """Return how many validation images to fetch at once: several only if small and of one size.

    The network scores them one by one, so that a score is the same on any number of ranks; but
    each message from a reading process takes 2 ms.
    """
    if size is None:
        return 1
    return max(1, min(_MAX_BATCH, _MAX_BYTES // image_format.bytes_with_mask(*size)))


def count_workers(world: World, requested: int | None) -> int:
    """Return the number of reading processes of one rank: its share of the processors, at most 16.

    On a CPU one less than cores, for they compete with the network: a rank with one core reads itself.

    Raises:
        UserError: some are requested, and this process is a daemonic one, as of a Pool, which may start none.
    """
    if multiprocessing.current_process().daemon:
        if requested:
            raise UserError(f"workers={requested}: this process may start no others; use workers=0")
        return 0
    if requested is not None:
        return requested
    share = world.processors if world.device.type == "cuda" else world.cores - 1
    return min(_MAX_WORKERS, share)


def start_worker(worker: int, readers: Iterable[str] = ()) -> None:
    """Prepare a reading process, as a DataLoader's `worker_init_fn`."""
    gc.freeze()  # or the garbage collector would copy the parent's memory, page by page
    _limit_threads()
    ignore_signals_in_worker()
    report_unsent()
    use_own_readers(readers)  # a process that was not forked from its rank does not have them


def _limit_threads() -> None:
    """Keep OpenCV to one core per reading process; it would use all of them in each."""
    import cv2

    cv2.setNumThreads(0)


def _collate(samples: list[Sample | UserError]) -> Sample | UserError:
    """Return a batch, or the first error in it."""
    for sample in samples:
        if isinstance(sample, UserError):
            return sample
    batch: Sample = default_collate(samples)
    return batch
