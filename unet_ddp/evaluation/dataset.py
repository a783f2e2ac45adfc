"""Pairs to score: an image as the network takes it, its truth at full size and at that scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from unet_ddp.data.dataset import Key, Sample, SegmentationDataset
from unet_ddp.data.formats.read import read_header, read_mask, read_with_nodata_mask
from unet_ddp.data.formats.resize import resize_nearest
from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.data.loaders import FORK, count_workers, start_worker
from unet_ddp.data.pairs import Pair
from unet_ddp.data.samplers import ScoringSampler
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.trained import Trained


class EvaluationSample(NamedTuple):
    """One pair."""

    image: Tensor
    """(1, h, w, C): scaled as the network takes it."""
    truth: Tensor
    """(1, H, W) uint8 class ids to score against."""
    reduced: Tensor
    """(1, h, w) uint8 class ids at the network's scale, as training's validation has them."""
    number: int
    """Of the pair in its data set."""


class EvaluationDataset(Dataset[EvaluationSample | UserError]):
    """Pairs of files as samples to score.

    Args:
        trained: the network that takes them.
        full_size: whether the truth is the mask at the image's own size, or reduced with it.
        resize_masks: bring masks of another size to that of their images.
    """

    def __init__(
        self, pairs: list[Pair], trained: Trained, *, full_size: bool, resize_masks: bool = False
    ) -> None:
        self.pairs = pairs
        self.labels = trained.labels
        self.format = trained.preprocessing.format
        self.full_size = full_size
        self.resize_masks = resize_masks
        self.scale = trained.preprocessing.scale
        self.scaled = SegmentationDataset(
            pairs, self.labels, self.format, scale=self.scale, resize_masks=resize_masks
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: Key) -> EvaluationSample | UserError:
        """The sample, or why it can't be read: what a worker raises would lose its form."""
        try:
            return self.read(key[1])
        except UserError as error:
            return error

    def read(self, number: int) -> EvaluationSample:
        """The pair of that number.

        Raises:
            UserError: a file that can't be read, a mask value that is none of the classes, or
                sizes that differ.
        """
        sample = self.scaled[(0, number)]
        if isinstance(sample, UserError):
            raise sample
        assert isinstance(sample, Sample)
        truth = sample.mask
        if self.full_size and self.scale != 1:
            truth = torch.from_numpy(self._truth(self.pairs[number]))
        return EvaluationSample(sample.image[None], truth[None], sample.mask[None], number)

    def _truth(self, pair: Pair) -> NDArray[np.uint8]:
        """Class ids at the image's own size."""
        ids = self.labels.to_ids(read_mask(pair.mask), pair.mask)
        header = read_header(pair.image)
        size = (header.height, header.width)
        if ids.shape != size:
            if not self.resize_masks:
                raise UserError(f"{pair.mask}: not of the size of {pair.image}; make them equal")
            ids = resize_nearest(ids.astype(np.int32), size).astype(np.uint8)
        if self.format.nodata is not None:
            nodata_mask = read_with_nodata_mask(pair.image, self.format)[1]
            if nodata_mask is not None:
                ids[nodata_mask] = IGNORE_ID
        return np.require(ids, requirements=["C", "W"])


def fetch(
    dataset: EvaluationDataset, world: World, *, workers: int | None
) -> Iterator[EvaluationSample]:
    """This rank's share of the samples.

    Args:
        workers: reading processes; from the cores when absent.

    Raises:
        UserError: one can't be read.
    """
    count = count_workers(world, workers)
    loader: DataLoader[EvaluationSample | UserError] = DataLoader(
        dataset,
        batch_size=None,
        sampler=ScoringSampler(len(dataset), rank=world.rank, size=world.size),
        num_workers=count,
        multiprocessing_context=FORK if count > 0 else None,
        pin_memory=world.device.type == "cuda",
        worker_init_fn=start_worker,
        generator=torch.Generator(),
    )
    for sample in loader:
        if isinstance(sample, UserError):
            raise sample
        yield sample
