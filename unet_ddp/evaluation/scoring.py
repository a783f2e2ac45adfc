"""Every rank scores its share of the images; together they have all counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample, fetch
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.evaluation.trained import Trained, resize
from unet_ddp.metrics.boundary import count_boundaries, default_tolerance
from unet_ddp.metrics.counts import Counts, confidence, confusion, histogram

_AT_ONCE = 1 << 22  # pixels that are counted at a time

Progress = Callable[[Iterable[EvaluationSample], int], Iterable[EvaluationSample]]


def score_pairs(
    trained: Trained,
    dataset: EvaluationDataset,
    world: World,
    *,
    threshold: float | None,
    tolerance: float | None = None,
    workers: int | None = None,
    progress: Progress = lambda samples, total: samples,
) -> Evaluation:
    """Score every pair of `dataset`, each on one rank; the result is the same on every rank.

    Args:
        threshold: foreground from this probability on, for two classes; None for the most
            probable class.
        tolerance: pixels that a boundary may be off; None for 0.75 percent of the diagonal.
        workers: reading processes of this rank; from the cores when absent.
        progress: wraps this rank's samples and their number, to show how far it is.

    Raises:
        UserError: a file that can't be read or scored, on every rank.
    """
    share = _Share(trained, dataset, threshold, tolerance)
    mistake = None
    try:
        mine = len(range(world.rank, len(dataset), world.size))
        for sample in progress(fetch(dataset, world, workers=workers), mine):
            share.count(sample)
    except UserError as error:  # all ranks hear of it, rather than wait for this one
        mistake = error
    outcomes = world.gather((share.records, mistake))
    for _, reason in outcomes:
        if reason is not None:
            raise reason
    counts = share.counts.over_ranks()
    return Evaluation(
        trained.labels,
        sorted((r for found, _ in outcomes for r in found), key=lambda record: record.number),
        counts.histogram.cpu().numpy(),
        counts.confusion.cpu().numpy(),
        threshold,
        tolerance,
        dataset.full_size,
    )


class _Share:
    """What one rank has counted so far."""

    def __init__(
        self,
        trained: Trained,
        dataset: EvaluationDataset,
        threshold: float | None,
        tolerance: float | None,
    ) -> None:
        self.trained = trained
        self.pairs = dataset.pairs
        self.threshold = threshold
        self.tolerance = tolerance
        self.records: list[ImageRecord] = []
        self.counts = Counts.zeros(trained.labels.num_classes, trained.device)
        """Its confusion is of the most probable classes at the network's scale."""

    def count(self, sample: EvaluationSample) -> None:
        """Count one image."""
        classes, device = self.trained.labels.num_classes, self.trained.device
        truth, reduced = sample.truth.to(device), sample.reduced.to(device)
        logits = self.trained(sample.image)
        for rows in _bands(reduced):
            found = confusion(logits[:, :, rows].max(1).indices, reduced[:, rows], classes)
            self.counts.confusion.add_(found)
        logits = resize(logits, truth.shape[-2:])
        ids = torch.empty_like(truth)
        table = np.zeros((classes, classes), np.int64)
        for rows in _bands(truth):
            some, true = logits[:, :, rows], truth[:, rows]
            self.counts.histogram.add_(
                histogram(confidence(some), some.max(1).indices, true, classes)
            )
            ids[:, rows] = decide(some, self.threshold).to(ids.dtype)
            table += confusion(ids[:, rows], true, classes).cpu().numpy()
        boundaries = count_boundaries(
            ids[0].cpu().numpy(),
            truth[0].cpu().numpy(),
            classes,
            tolerance=default_tolerance(*truth.shape[-2:])
            if self.tolerance is None
            else self.tolerance,
        )
        name = self.pairs[sample.number].name
        self.records.append(ImageRecord(name, sample.number, table, boundaries))


def _bands(masks: Tensor) -> Iterator[slice]:
    """Rows of masks (1, H, W), for counting takes tens of bytes for a pixel."""
    _, height, width = masks.shape
    high = max(1, _AT_ONCE // width)
    yield from (slice(top, top + high) for top in range(0, height, high))


def decide(logits: Tensor, threshold: float | None) -> Tensor:
    """Class ids (N, H, W) of logits (N, C, H, W), as predicting decides."""
    if threshold is None:
        return logits.max(1).indices
    return (confidence(logits) >= threshold).long()
