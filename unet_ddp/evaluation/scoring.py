"""Scoring of pairs: every rank counts its share, and their integer counts are summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, Ids, Mask
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample, fetch
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.metrics.boundary import BoundaryCounts, count_boundaries, default_tolerance
from unet_ddp.metrics.counts import Counts, confidence, confusion, histogram
from unet_ddp.metrics.scores import Tally
from unet_ddp.prediction.predictor import Predictor

Result = TypeVar("Result")

_AT_ONCE = 1 << 22  # pixels counted at a time: counting takes tens of bytes for each


def score_pairs(
    predictor: Predictor,
    dataset: EvaluationDataset,
    world: World,
    *,
    threshold: float | None,
    tolerance: float | None = None,
    workers: int | None = None,
) -> Evaluation:
    """Score every pair, each on one rank, and return the same result on every rank.

    The network of `predictor` is not folded, as in training's validation; `threshold` and
    `tolerance` are those of `Evaluation`, `workers` those of `fetch`.

    Raises:
        UserError: a file that can't be read or scored, or a memory too small, on every rank.
    """
    counts = Counts.zeros(predictor.labels.num_classes, predictor.device)

    def score(sample: EvaluationSample) -> ImageRecord:
        counted = _count(predictor, sample, counts, threshold=threshold, tolerance=tolerance)
        return ImageRecord(dataset.pairs[sample.pair].name, sample.pair, *counted)

    records = score_each(score, fetch(dataset, world, workers=workers), world)
    counts = counts.over_ranks()
    return Evaluation(
        predictor.labels,
        sorted(records, key=lambda record: record.pair),
        histogram=counts.histogram.cpu().numpy(),
        as_trained=counts.confusion.cpu().numpy(),
        threshold=threshold,
        tolerance=tolerance,
        full_size=dataset.full_size,
    )


def score_each(
    score: Callable[[EvaluationSample], Result], samples: Iterable[EvaluationSample], world: World
) -> list[Result]:
    """Return the results for each rank's samples on every rank, or raise the mistake of one."""
    results, mistake = [], None
    try:
        for sample in samples:
            results.append(score(sample))
    except (UserError, RuntimeError) as error:
        mistake = _as_mistake(error, world)  # raised after the gathering, which no rank may miss
    outcomes = world.gather((results, mistake))
    for _, reason in outcomes:
        if reason is not None:
            raise reason
    return [result for own, _ in outcomes for result in own]


def _as_mistake(error: UserError | RuntimeError, world: World) -> UserError:
    """Return an error for all ranks in one line; raise any but a mistake and a full memory."""
    if isinstance(error, UserError):
        return error
    if not is_out_of_memory(error):
        raise error
    return UserError(f"rank {world.rank}: out of memory in scoring; use --device cpu")


def _count(
    predictor: Predictor,
    sample: EvaluationSample,
    counts: Counts,
    *,
    threshold: float | None,
    tolerance: float | None,
) -> tuple[NDArray[np.int64], list[BoundaryCounts], list[Tally]]:
    """Add an image to `counts`; return its own confusion matrix (C, C), boundary counts and tallies.

    The confusion matrix of `counts` is that of the most probable classes at the network's scale.
    """
    classes, device = predictor.labels.num_classes, predictor.device
    truth, scaled_truth = sample.truth.to(device), sample.scaled_truth.to(device)
    logits = predictor.logits(sample.image)  # (1, C, h, w)
    for rows in _bands(scaled_truth):
        predicted = logits[:, :, rows].max(1).indices
        counts.confusion.add_(confusion(predicted, scaled_truth[:, rows], classes))
    logits = resize(logits, truth.shape[-2:])  # (1, C, H, W)
    ids = torch.empty_like(truth)
    table = np.zeros((classes, classes), np.int64)
    for rows in _bands(truth):
        some, true = logits[:, :, rows], truth[:, rows]
        predicted = some.max(1).indices
        counts.histogram.add_(histogram(confidence(some), predicted, true, classes))
        ids[:, rows] = decide(some, threshold).to(ids.dtype)
        table += confusion(ids[:, rows], true, classes).cpu().numpy()
    distance = default_tolerance(*truth.shape[-2:]) if tolerance is None else tolerance
    own_ids, true_ids = ids[0].cpu().numpy(), truth[0].cpu().numpy()
    boundaries = count_boundaries(own_ids, true_ids, classes, tolerance=distance)
    decoded = Decided(own_ids, logits).decode(predictor.labels, true_ids)
    return table, boundaries, predictor.labels.score(decoded, sample.mask[0].numpy())


def _bands(masks: Tensor) -> Iterator[slice]:
    """Yield the rows of masks (1, H, W), a band at a time."""
    _, height, width = masks.shape
    step = max(1, _AT_ONCE // width)
    yield from (slice(top, top + step) for top in range(0, height, step))


@dataclass
class Decided:
    """The prediction of one image, of which labels make a mask."""

    ids: Ids
    """(H, W): see `decide`."""
    logits: Tensor
    """(1, C, H, W)."""

    @property
    def rows(self) -> slice:
        """All of them."""
        return slice(None)

    @cached_property
    def probabilities(self) -> NDArray[np.float32]:
        """(C, H, W)."""
        return self.logits[0].softmax(0).cpu().numpy()

    def decode(self, labels: Labels, truth: Ids) -> Mask:
        """Return the mask (H, W), without pixels that are ignored in `truth`."""
        decoder = labels.decoder((truth.shape[0], truth.shape[1]))
        decoder.see(self)
        mask, _ = decoder.finish()
        mask[truth == IGNORE_ID] = labels.blank
        return mask


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
