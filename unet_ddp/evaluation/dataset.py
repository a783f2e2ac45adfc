"""Pairs to score: images as the network takes them, truths at full size and at that scale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from tqdm import tqdm

from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.loaders import count_workers, loader_arguments
from unet_ddp.data.masks import IGNORE_ID, Size, surround
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.readers.base import Codes
from unet_ddp.data.readers.read import Source, hidden_shape_message
from unet_ddp.data.samplers import Key, ScoringSampler
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError, hides_bars
from unet_ddp.prediction.predictor import Predictor


class EvaluationSample(NamedTuple):
    """One pair."""

    image: Tensor
    """(1, h, w, C): scaled as the network takes it."""
    truth: Tensor
    """(1, H, W) uint8 class ids to score against."""
    scaled_truth: Tensor
    """(1, h, w) uint8 class ids at the network's scale, as training's validation has them."""
    mask: Tensor
    """(1, H, W): the truth as a predicted mask has it, class ids or numbers."""
    pair: int
    """Index of the pair in its data set."""


class EvaluationDataset(SegmentationDataset):
    """Pairs of files as samples to score, at the images' own size or at the network's scale.

    With `resize_masks`, masks of another size are resized to that of their images.
    """

    def __init__(
        self,
        pairs: Pairs,
        predictor: Predictor,
        *,
        full_size: bool,
        resize_masks: bool = False,
    ) -> None:
        scale, form = predictor.preprocessing.scale, predictor.format
        super().__init__(pairs, predictor.labels, form, scale=scale, resize_masks=resize_masks)
        self.full_size = full_size
        self._needs_truth = full_size and (scale != 1 or form.ground_resolution is not None)

    def __getitem__(self, key: Key) -> EvaluationSample | UserError:  # type: ignore[override]
        """Return a sample, or its error: what a reading process raises would lose its type."""
        scaled, (_, index) = super().__getitem__(key), key
        if isinstance(scaled, UserError):
            return scaled
        truth = scaled.mask
        try:
            self._refuse_hidden_shape(self.pairs.to_read(index).mask, truth)
            if self._needs_truth:
                truth = torch.from_numpy(self.read_truth(index))
            mask = truth
            if self.labels.objects is not None:
                codes = self._read_values(self.pairs.to_read(index), truth.numpy().shape)
                mask = torch.from_numpy(self.labels.objects.find_numbers(codes))
        except UserError as error:
            return error
        return EvaluationSample(
            scaled.image[None], truth[None], scaled.mask[None], mask[None], index
        )

    def _refuse_hidden_shape(self, mask: Path, ids: Tensor) -> None:
        """Raise a UserError if a mask of one class hides a shape: no check of a set has seen it."""
        kept = ids[ids != IGNORE_ID]
        if self.labels.may_overlap or not kept.numel() or kept.min() != kept.max():
            return
        with self.pairs.local(mask) as local, Source(local) as source:
            if source.header.has_alpha and source.hides_shape(source.mask()):
                raise UserError(hidden_shape_message(mask))

    def _read_values(self, pair: Pair, size: Size) -> Codes:
        """Return the values (H, W) of the mask of a pair, whose truth has this size."""
        scale = 1.0 if self.full_size else self.scale
        if not self.full_size and self.image_format.ground_resolution is not None:
            with self.pairs.local(pair.image) as local, Source(local) as source:
                scale = self.find_scale(source)
        if pair.inside is None:
            return self.read_codes(pair.mask, size, scale)
        return surround(self.read_codes(pair.mask, None, scale), pair.inside, size, scale, 0)

    def read(self, index: int) -> EvaluationSample:
        """Return the sample of pair `index`, or raise its error."""
        sample = self[0, index]
        if isinstance(sample, UserError):
            raise sample
        return sample


def _share(samples: list[Any]) -> Any:
    """Move the one sample to shared memory: an error here is raised, one in the queue's thread lost."""
    sample = samples[0]
    if get_worker_info() is not None and isinstance(sample, EvaluationSample):
        for tensor in sample[:-1]:
            tensor.share_memory_()  # type: ignore[no-untyped-call]
    return sample


def fetch(
    dataset: EvaluationDataset, world: World, *, workers: int | None
) -> Iterator[EvaluationSample]:
    """Yield this rank's share of the samples, read by `workers` processes; see `count_workers`.

    The main process shows a progress bar, on a terminal or in a notebook only.
    """
    count = count_workers(world, workers)
    sampler = ScoringSampler(len(dataset), rank=world.rank, size=world.size)
    loader: DataLoader[EvaluationSample | UserError] = DataLoader(
        **loader_arguments(dataset, sampler, batch_size=1, workers=count),
        collate_fn=_share,
        pin_memory=world.device.type == "cuda",
    )
    is_silent = hides_bars() if world.is_main else True
    for sample in tqdm(loader, unit="image", leave=False, disable=is_silent):
        if isinstance(sample, (UserError, RunError)):
            raise sample
        yield sample
