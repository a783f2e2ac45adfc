"""Scoring of pairs: every rank counts its share, and their integer counts are summed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample, fetch
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.metrics.boundary import count_boundaries, default_tolerance
from unet_ddp.metrics.counts import Counts, confidence, confusion, histogram
from unet_ddp.prediction.predictor import Predictor

_AT_ONCE = 1 << 22  # pixels counted at a time: counting takes tens of bytes for each


def score_pairs(
    predictor: Predictor,
    dataset: EvaluationDataset,
    world: World,
    *,
    threshold: float | None,
    tolerance: float | None = None,
    workers: int | None = None,
    show_progress: bool = False,
) -> Evaluation:
    """Score every pair, each on one rank; return the same result on every rank.

    Args:
        predictor: of one network, not folded: as training's validation has scored it.
        dataset: the pairs.
        world: the ranks to share them.
        threshold: lowest probability of the foreground, for two classes; None for the most
            probable class.
        tolerance: pixels that a boundary may be off; None for 0.75 percent of the diagonal.
        workers: reading processes of this rank; None for a number that fits the cores.
        show_progress: show a progress bar on the main process.

    Raises:
        UserError: a file that can't be read or scored, on every rank.
    """
    share = _Share(predictor, dataset, threshold, tolerance)
    mistake = None
    try:
        count = len(range(world.rank, len(dataset), world.size))
        is_silent = None if show_progress and world.is_main else True  # None: on a terminal only
        samples = fetch(dataset, world, workers=workers)
        for sample in tqdm(samples, total=count, unit="image", leave=False, disable=is_silent):
            share.count(sample)
    except UserError as error:  # raised after the gathering, which no rank may miss
        mistake = error
    outcomes = world.gather((share.records, mistake))
    for _, reason in outcomes:
        if reason is not None:
            raise reason
    counts = share.counts.over_ranks()
    return Evaluation(
        predictor.labels,
        sorted((r for records, _ in outcomes for r in records), key=lambda record: record.pair),
        counts.histogram.cpu().numpy(),
        counts.confusion.cpu().numpy(),
        threshold,
        tolerance,
        dataset.full_size,
    )


class _Share:
    """Counts of one rank's share."""

    def __init__(
        self,
        predictor: Predictor,
        dataset: EvaluationDataset,
        threshold: float | None,
        tolerance: float | None,
    ) -> None:
        self.predictor = predictor
        self.pairs = dataset.pairs
        self.threshold = threshold
        self.tolerance = tolerance
        self.records: list[ImageRecord] = []
        self.counts = Counts.zeros(predictor.labels.num_classes, predictor.device)
        """Its confusion is of the most probable classes at the network's scale."""

    def count(self, sample: EvaluationSample) -> None:
        """Count one image."""
        classes, device = self.predictor.labels.num_classes, self.predictor.device
        truth, scaled_truth = sample.truth.to(device), sample.scaled_truth.to(device)
        logits = self.predictor.logits(sample.image)  # (1, C, h, w)
        for rows in _bands(scaled_truth):
            predicted = logits[:, :, rows].max(1).indices
            self.counts.confusion.add_(confusion(predicted, scaled_truth[:, rows], classes))
        logits = resize(logits, truth.shape[-2:])  # (1, C, H, W)
        ids = torch.empty_like(truth)
        table = np.zeros((classes, classes), np.int64)
        for rows in _bands(truth):
            some, true = logits[:, :, rows], truth[:, rows]
            self.counts.histogram.add_(
                histogram(confidence(some), some.max(1).indices, true, classes)
            )
            ids[:, rows] = decide(some, self.threshold).to(ids.dtype)
            table += confusion(ids[:, rows], true, classes).cpu().numpy()
        tolerance = self.tolerance
        boundaries = count_boundaries(
            ids[0].cpu().numpy(),
            truth[0].cpu().numpy(),
            classes,
            tolerance=default_tolerance(*truth.shape[-2:]) if tolerance is None else tolerance,
        )
        name = self.pairs[sample.pair].name
        self.records.append(ImageRecord(name, sample.pair, table, boundaries))


def _bands(masks: Tensor) -> Iterator[slice]:
    """Yield the rows of masks (1, H, W), a band at a time."""
    _, height, width = masks.shape
    step = max(1, _AT_ONCE // width)
    yield from (slice(top, top + step) for top in range(0, height, step))


def resize(logits: Tensor, size: torch.Size) -> Tensor:
    """Return logits (N, C, h, w) at another size, interpolated as for a predicted mask."""
    if logits.shape[-2:] == size:
        return logits
    return F.interpolate(logits, size, mode="bilinear", align_corners=False)


def decide(logits: Tensor, threshold: float | None) -> Tensor:
    """Return class ids (N, H, W) of logits (N, C, H, W), by a threshold as `score_pairs` has it."""
    if threshold is None:
        return logits.max(1).indices
    return (confidence(logits) >= threshold).long()
