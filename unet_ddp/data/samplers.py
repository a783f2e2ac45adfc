"""Samplers: the images that each rank takes at each step, in training and in scoring; the epochs of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DistributedSampler, Sampler

from unet_ddp.errors import UserError, count_of

if TYPE_CHECKING:
    from unet_ddp.data.dataset import Sample
    from unet_ddp.data.loaders import SampleLoader

Key = tuple[int, int]
"""(pass over the images, index): all that a sample depends on, so that reading processes keep no state.

An epoch is one pass, but for --epoch-steps.
"""
Draw = Callable[[int, int], tuple[int, int | None]]
"""Of a key, the index of the image to take, and the class it was chosen for, None if for none."""
Stream = Callable[[range], Iterator[Key]]
"""Of positions in the sequence of all samples of a run, their keys."""
Order = Callable[["TrainingSampler"], Stream]
"""Of a sampler, the stream of its keys."""

_AT_ONCE = 4096  # indices that are Python's at a time


def shuffle(sampler: TrainingSampler) -> Stream:
    """Return a stream of permutations, each of (seed, pass), as torch's DistributedSampler has them."""
    return partial(shuffled, sampler.count, sampler.taken, sampler.seed)


def shuffled(count: int, taken: int, seed: int, positions: range) -> Iterator[Key]:
    """Yield the keys at some positions of permutations of `count` images, each cut after `taken`."""
    for number in range(positions.start // taken, -(-positions.stop // taken)):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + number))
        begin = number * taken
        first = max(positions.start, begin + (positions.start - begin) % positions.step)
        last = min(positions.stop, begin + taken)
        # As lists, all of them would take 36 bytes for each image of the whole set
        for indices in torch.split(order[first - begin : last - begin : positions.step], _AT_ONCE):
            for index in indices.tolist():
                yield number, index


class TrainingSampler(DistributedSampler[Key]):
    """This rank's keys from any step on, to the end of an epoch or of some after it.

    Step k takes the same global batch on any number of ranks: the positions of one stream are dealt to
    them one by one. Images left over from the last whole global batch of a pass are dropped; fewer images
    than that are a UserError. With `steps`, an epoch is that many steps: all images of a pass are taken,
    and a global batch may begin in one pass and end in the next.

    `count` images, of which each rank takes `per_step` in one step of the optimizer, in an `order`.
    """

    def __init__(
        self,
        count: int,
        per_step: int,
        *,
        rank: int,
        size: int,
        seed: int,
        steps: int | None = None,
        order: Order = shuffle,
    ) -> None:
        # Only the length of the range is used.
        super().__init__(range(count), size, rank, seed=seed, drop_last=True)  # type: ignore[arg-type]
        self.count, self.per_step = count, per_step
        self.first_step = self.last_epoch = 0  # of a pass of the loader
        self.images = per_step * size  # in a global batch
        self.steps = steps or count // self.images  # of the optimizer in a whole epoch
        if self.steps == 0:
            raise UserError(
                f"--batch-size: one step takes {count_of(per_step * size, 'image')} ({per_step} for each of "
                f"{count_of(size, 'process')}, --accumulate included), but there are {count} to train on; use a smaller one"
            )
        self.taken = self.steps * self.images if steps is None else count  # of each permutation
        self.stream = order(self)

    def start_at(self, epoch: int, step: int, *, last: int | None = None) -> None:
        """Make the next pass begin at `step` of `epoch`: index arithmetic, nothing is replayed.

        It ends with the epoch `last` (default: with `epoch`).
        """
        self.set_epoch(epoch)
        self.first_step = step
        self.last_epoch = epoch if last is None else last

    def __iter__(self) -> Iterator[Key]:
        first = (self.epoch * self.steps + self.first_step) * self.images
        end = (self.last_epoch + 1) * self.steps * self.images
        return self.stream(range(first + self.rank, end, self.num_replicas))

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
