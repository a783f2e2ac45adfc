"""Samplers: the images that each rank takes at each step, in training and in scoring; the epochs of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DistributedSampler, Sampler

from unet_ddp.errors import UserError, count_of

if TYPE_CHECKING:
    from unet_ddp.data.dataset import Sample
    from unet_ddp.data.loaders import SampleLoader

Key = tuple[int, int]
"""(epoch, index): all that a sample depends on, so that reading processes keep no state."""
Draw = Callable[[int, int], tuple[int, int | None]]
"""Of an epoch and an index, the index of the image to take, and the class it was chosen for, None if for none."""

_AT_ONCE = 4096  # indices that are Python's at a time


class TrainingSampler(DistributedSampler[Key]):
    """This rank's keys from any step on, to the end of an epoch or of some after it.

    Step k takes the same global batch on any number of ranks: torch's DistributedSampler deals a
    permutation of (seed, epoch) to the ranks one by one. Images left over from the last whole
    global batch are dropped; fewer images than that are a UserError.

    `count` images, of which each rank takes `per_step` in one step of the optimizer.
    """

    def __init__(self, count: int, per_step: int, *, rank: int, size: int, seed: int) -> None:
        # Only the length of the range is used.
        super().__init__(range(count), size, rank, seed=seed, drop_last=True)  # type: ignore[arg-type]
        self.per_step = per_step
        self.first_step = 0
        self.last_epoch = 0  # of a pass
        self.steps = count // (per_step * size)  # of the optimizer in a whole epoch
        if self.steps == 0:
            raise UserError(
                f"--batch-size: one step takes {count_of(per_step * size, 'image')} ({per_step} for each of "
                f"{count_of(size, 'process')}), but there are {count} to train on; use a smaller one"
            )

    def start_at(self, epoch: int, step: int, *, last: int | None = None) -> None:
        """Make the next pass begin at `step` of `epoch`: index arithmetic, nothing is replayed.

        It ends with the epoch `last` (default: with `epoch`).
        """
        self.set_epoch(epoch)
        self.first_step = step
        self.last_epoch = epoch if last is None else last

    def __iter__(self) -> Iterator[Key]:
        step = self.first_step
        for epoch in range(self.epoch, self.last_epoch + 1):
            # torch's own iterator makes lists, of 36 bytes for each image of the whole set
            draw = torch.Generator().manual_seed(self.seed + epoch)
            order = torch.randperm(len(self.dataset), generator=draw)  # type: ignore[arg-type]
            order = order[self.rank : self.total_size : self.num_replicas]
            for indices in torch.split(
                order[step * self.per_step : self.steps * self.per_step], _AT_ONCE
            ):
                for index in indices.tolist():
                    yield epoch, index
            step = 0

    def __len__(self) -> int:
        epochs = self.last_epoch - self.epoch
        return (epochs * self.steps + self.steps - self.first_step) * self.per_step


class TrainingBatches:
    """This rank's batches to train on, epoch by epoch, from any step on.

    The reading processes go on with the next epoch during an epoch's last steps, validation and save. A new
    pass for each epoch would first wait for its first batch.

    `epochs` is the number of the whole run's.
    """

    def __init__(self, loader: SampleLoader, sampler: TrainingSampler, epochs: int) -> None:
        self.loader, self.sampler = loader, sampler
        self._last = epochs - 1
        self._next: tuple[int, int] | None = None  # epoch and step at which `_batches` go on
        self._batches: Iterator[Sample] = iter(())

    def of_epoch(self, epoch: int, step: int) -> Iterator[Sample]:
        """Yield the batches of the rest of an epoch, all of which are taken, or the run ends."""
        if self._next != (epoch, step):
            self.sampler.start_at(epoch, step, last=max(epoch, self._last))
            self._batches = iter(self.loader)
        self._next = (epoch + 1, 0) if epoch < self._last else None
        left = (self.sampler.steps - step) * self.sampler.per_step
        return islice(self._batches, left // self.loader.batch_size)


class ScoringSampler(Sampler[Key]):
    """This rank's share of all images, not padded: no image is counted twice."""

    def __init__(self, count: int, *, rank: int, size: int) -> None:
        self.indices = range(rank, count, size)

    def __iter__(self) -> Iterator[Key]:
        return ((0, index) for index in self.indices)

    def __len__(self) -> int:
        return len(self.indices)
