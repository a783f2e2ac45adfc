"""Pairs to score: images as the network takes them, truths at full size and at that scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from unet_ddp.data.dataset import Key, SegmentationDataset
from unet_ddp.data.formats.read import read_header, read_mask, read_with_nodata_mask
from unet_ddp.data.formats.resize import resize_nearest
from unet_ddp.data.labels import IGNORE_ID
from unet_ddp.data.loaders import FORK, count_workers, start_worker
from unet_ddp.data.pairs import Pair, mask_size_message
from unet_ddp.data.samplers import ScoringSampler
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.prediction.predictor import Predictor


class EvaluationSample(NamedTuple):
    """One pair."""

    image: Tensor
    """(1, h, w, C): scaled as the network takes it."""
    truth: Tensor
    """(1, H, W) uint8 class ids to score against."""
    scaled_truth: Tensor
    """(1, h, w) uint8 class ids at the network's scale, as training's validation has them."""
    pair: int
    """Index of the pair in its data set."""


class EvaluationDataset(Dataset[EvaluationSample | UserError]):
    """Pairs of files as samples to score."""

    def __init__(
        self,
        pairs: list[Pair],
        predictor: Predictor,
        *,
        full_size: bool,
        resize_masks: bool = False,
    ) -> None:
        """Read `pairs` as the network takes them.

        Args:
            pairs: files to score.
            predictor: the network.
            full_size: score at the images' own size, or at the network's scale.
            resize_masks: resize masks of another size to that of their images.
        """
        self.pairs = pairs
        self.labels = predictor.labels
        self.format = predictor.format
        self.full_size = full_size
        self.resize_masks = resize_masks
        self.scale = predictor.preprocessing.scale
        self.scaled = SegmentationDataset(
            pairs, self.labels, self.format, scale=self.scale, resize_masks=resize_masks
        )

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pairs)

    def __getitem__(self, key: Key) -> EvaluationSample | UserError:
        """Return a sample, or its error: what a reading process raises would lose its type."""
        try:
            return self.read(key[1])
        except UserError as error:
            return error

    def read(self, index: int) -> EvaluationSample:
        """Return the sample of pair `index`.

        Raises:
            UserError: a file that can't be read, an unknown mask value, or sizes that differ.
        """
        sample = self.scaled[(0, index)]
        if isinstance(sample, UserError):
            raise sample
        truth = sample.mask
        if self.full_size and self.scale != 1:
            truth = torch.from_numpy(self._read_truth(self.pairs[index]))
        return EvaluationSample(sample.image[None], truth[None], sample.mask[None], index)

    def _read_truth(self, pair: Pair) -> NDArray[np.uint8]:
        """Return class ids (H, W) at the image's own size."""
        ids = self.labels.to_ids(read_mask(pair.mask), pair.mask)
        header = read_header(pair.image)
        size = (header.height, header.width)
        if ids.shape != size:
            if not self.resize_masks:
                raise UserError(mask_size_message(pair.mask, ids.shape, size))
            ids = resize_nearest(ids, size)
        if self.format.nodata is not None:
            nodata_mask = read_with_nodata_mask(pair.image, self.format)[1]
            if nodata_mask is not None:
                ids[nodata_mask] = IGNORE_ID
        return np.require(ids, requirements=["C", "W"])


def fetch(
    dataset: EvaluationDataset, world: World, *, workers: int | None, show_progress: bool = False
) -> Iterator[EvaluationSample]:
    """Yield this rank's share of the samples.

    With `workers` reading processes, or a number that fits the cores; a progress bar is shown by
    the main process, and on a terminal only.

    Raises:
        UserError: a sample can't be read.
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
        generator=torch.Generator(),  # or it would draw on torch's global one
    )
    is_silent = None if show_progress and world.is_main else True  # None: if this is a terminal
    for sample in tqdm(loader, unit="image", leave=False, disable=is_silent):
        if isinstance(sample, UserError):
            raise sample
        yield sample
