"""Which sample goes to which rank at which step, and the loaders that fetch them."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler, default_collate
from tqdm import tqdm

from unet_ddp.data.dataset import Key, Replaced, Sample, SegmentationDataset
from unet_ddp.distributed.stop_signal import ignore_in_worker
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, one_line

# Ranks that --nproc spawns would spawn their reading processes too: seconds of imports for each.
FORK = "fork" if sys.platform == "linux" else None


class TrainingSampler(DistributedSampler[Key]):
    """This rank's keys of an epoch, from any step on.

    Step k of a world of any size takes the same global batch: torch's DistributedSampler
    deals a permutation of (seed, epoch) out one by one, and the last samples that fill no
    global batch are left out.

    Args:
        count: number of training images.
        per_step: images per rank in one step of the optimizer.

    Raises:
        UserError: not one global batch can be filled.
    """

    def __init__(self, count: int, per_step: int, *, rank: int, size: int, seed: int) -> None:
        super().__init__(
            range(count),  # type: ignore[arg-type]  # only its length is used
            num_replicas=size,
            rank=rank,
            seed=seed,
            drop_last=True,
        )
        self.per_step = per_step
        self.first_step = 0
        self.steps = count // (per_step * size)
        """Steps of the optimizer in a whole epoch."""
        if self.steps == 0:
            raise UserError(
                f"--batch-size: one step takes {per_step * size} images ({per_step} for each of "
                f"{size} process(es)), and there are {count} to train on; make it smaller"
            )

    def start_at(self, epoch: int, step: int) -> None:
        """The next pass is over what `epoch` has from `step` on: index arithmetic, no replay."""
        self.set_epoch(epoch)
        self.first_step = step

    def __iter__(self) -> Iterator[Key]:
        indices: list[int] = list(super().__iter__())  # type: ignore[arg-type]
        mine = indices[self.first_step * self.per_step : self.steps * self.per_step]
        return ((self.epoch, index) for index in mine)

    def __len__(self) -> int:
        return (self.steps - self.first_step) * self.per_step


class ScoringSampler(Sampler[Key]):
    """This rank's share of all images: unpadded, so that none is counted twice."""

    def __init__(self, count: int, *, rank: int, size: int) -> None:
        self.indices = range(rank, count, size)

    def __iter__(self) -> Iterator[Key]:
        return ((0, index) for index in self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class SampleLoader:
    """Batches of a data set, fetched by workers that live as long as the loader.

    A file that can't be read is the same UserError with workers as without: the loader would
    raise it with a worker's traceback for a message. Its own random generator keeps it from
    drawing on torch's global one.

    Args:
        note: is told of files that can't be read and for which others were taken; it may raise.
        singly: give the samples of a batch one after the other, as batches of one.
    """

    def __init__(
        self,
        loader: DataLoader[Sample | Replaced | UserError],
        note: Callable[[UserError], None] | None = None,
        *,
        singly: bool = False,
    ) -> None:
        self.loader = loader
        self.note = note
        self.singly = singly

    def __iter__(self) -> Iterator[Sample]:
        for batch in self._batches():
            if self.singly:
                yield from map(
                    Sample._make, zip(*(torch.split(part, 1) for part in batch), strict=True)
                )
            else:
                yield batch

    def _batches(self) -> Iterator[Sample]:
        for batch in self.loader:
            if isinstance(batch, UserError):
                raise batch
            if isinstance(batch, Replaced):
                for error in batch.errors:
                    if self.note is not None:
                        self.note(error)
                batch = batch.sample
            if batch is not None:
                yield batch

    def close(self) -> None:
        """End the reading processes.

        Left to the garbage collector, which may close their queues before it tells them to end,
        they would be waited for in vain.
        """
        iterator = getattr(self.loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class Tolerance:
    """Bears files that can't be read, up to `most` different ones over all ranks."""

    def __init__(self, world: World, most: int) -> None:
        self.world = world
        self.most = most

    def note(self, error: UserError) -> None:
        """Tell of a file, once, and by the rank that met with it.

        Raises:
            UserError: that is one too many.
        """
        count, is_new = self.world.count_once(str(error))
        if count > self.most:
            raise UserError(f"{error} (--skip-bad-files {self.most}: this is number {count})")
        if is_new:
            line = f"warning: {error}; done without it ({count} of {self.most} such files)"
            tqdm.write(one_line(line), file=sys.stderr)


class Prefetcher:
    """Batches, some of them fetched before they are wanted.

    So that a file that can't be read is known on all ranks before the step that needs it: the
    step is not begun anywhere, and the run can be saved as it is.

    Args:
        count: how many batches ahead.
        stop: is told of the error that ends them.
    """

    def __init__(
        self, batches: Iterable[Sample], count: int, stop: Callable[[UserError], None]
    ) -> None:
        self.source = iter(batches)
        self.count = count
        self.stop = stop
        self.waiting: deque[Sample] = deque()
        self.ended = False

    def fill(self) -> None:
        """Fetch what is missing."""
        while len(self.waiting) < self.count and not self.ended:
            try:
                self.waiting.append(next(self.source))
            except StopIteration:
                self.ended = True
            except UserError as error:
                self.ended = True
                self.stop(error)

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        if not self.waiting:
            self.fill()
        if not self.waiting:
            raise StopIteration
        return self.waiting.popleft()


def make_loader(
    dataset: SegmentationDataset,
    sampler: Sampler[Key],
    *,
    batch_size: int,
    workers: int,
    pin: bool,
    note: Callable[[UserError], None] | None = None,
    singly: bool = False,
    timeout: float = 0,
) -> SampleLoader:
    """The loader of one rank; `note` and `singly` as in `SampleLoader`.

    Args:
        timeout: seconds to wait for a reading process's batch; 0 for ever.
    """
    if workers == 0:
        _one_thread()
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        timeout=timeout if workers > 0 else 0,
        pin_memory=pin,
        persistent_workers=workers > 0,
        multiprocessing_context=FORK if workers > 0 else None,
        worker_init_fn=start_worker,
        generator=torch.Generator(),
        collate_fn=_collate,
    )
    return SampleLoader(loader, note, singly=singly)


def _collate(samples: list[Sample | Replaced | UserError]) -> Sample | Replaced | UserError:
    """A batch, or the first error in it."""
    errors: list[UserError] = []
    kept: list[Sample] = []
    for sample in samples:
        if isinstance(sample, UserError):
            return sample
        if isinstance(sample, Sample):
            kept.append(sample)
            continue
        errors += sample.errors
        if sample.sample is not None:
            kept.append(sample.sample)
    batch: Sample | None = default_collate(kept) if kept else None
    return Replaced(batch, errors) if errors or batch is None else batch


def count_workers(world: World, asked: int | None) -> int:
    """Reading processes for one rank: its share of the cores, less one on a CPU.

    There they compete with the network: a rank with a single core reads by itself.
    """
    if asked is not None:
        return asked
    return min(8, world.cores if world.device.type == "cuda" else world.cores - 1)


def start_worker(worker: int) -> None:
    """What a reading process does first."""
    gc.freeze()  # or looking for garbage would copy the parent's memory, page by page
    _one_thread()
    ignore_in_worker()


def _one_thread() -> None:
    """One core per reading process: OpenCV would take them all in each."""
    import cv2

    cv2.setNumThreads(0)
