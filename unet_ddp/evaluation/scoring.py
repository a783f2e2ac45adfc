"""Scoring of pairs: every rank counts its share, and their integer counts are summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, Ids, Mask, enlargement
from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.distributed.failures import explain_error
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.evaluation.boundary import count_boundaries, default_tolerance
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample, fetch
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.heads import Head
from unet_ddp.metrics.counts import Counts
from unet_ddp.metrics.scores import Tally
from unet_ddp.prediction.prediction import PredictedBand
from unet_ddp.prediction.predictor import Predictor

Result = TypeVar("Result")

AT_ONCE = 1 << 22
"""Pixels counted at a time: counting takes tens of bytes for each."""


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
    `tolerance` are as in `Evaluation`, `workers` as in `fetch`.

    Raises:
        UserError: a file that can't be read or scored, or a memory too small, on every rank.
    """
    counts = predictor.head.counts.zeros(predictor.labels.num_classes, predictor.device)

    def score(sample: EvaluationSample) -> ImageRecord:
        pair = dataset.pairs[sample.pair]
        return _score(predictor, sample, pair, counts, threshold=threshold, tolerance=tolerance)

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
    results = []
    mistake: Exception | None = None  # it is raised after the gathering, which no rank may miss
    try:
        for sample in samples:
            results.append(score(sample))
    except (UserError, RunError) as error:
        mistake = error
    except (OSError, RuntimeError) as error:
        reason = explain_error(error, world)  # a reading process that died
        if is_out_of_memory(error):
            mistake = UserError(f"rank {world.rank}: out of memory in scoring; use --device cpu")
        elif reason is not None:
            mistake = RunError(reason)
        else:
            raise
    outcomes = world.gather((results, mistake))
    for _, each in outcomes:
        if each is not None:
            raise each
    return list(chain.from_iterable(own for own, _ in outcomes))


def _score(
    predictor: Predictor,
    sample: EvaluationSample,
    pair: Pair,
    counts: Counts,
    *,
    threshold: float | None,
    tolerance: float | None,
) -> ImageRecord:
    """Return the counts of an image, and add to the set's `counts`.

    The confusion matrix of `counts` is that of the most probable classes at the network's scale.
    """
    labels, device = predictor.labels, predictor.device
    truth, scaled_truth = sample.truth.to(device), sample.scaled_truth.to(device)
    logits = predictor.logits(sample.image)  # (1, C, h, w)
    for rows in _bands(scaled_truth):
        predicted = counts.decide(logits[:, :, rows])
        counts.confusion.add_(counts.confuse(predicted, scaled_truth[:, rows], labels.num_classes))
    size = truth.shape[-2:]
    enlarged = enlargement(sample.image.shape[1:3], size)
    logits = resize(logits, size)  # (1, C, H, W)
    band = decide(logits, threshold, predictor.head)
    ids = torch.from_numpy(band.ids)[None].to(device)
    table = counts.zeros(labels.num_classes, device)
    for rows in _bands(truth):
        table.add(counts.of(logits[:, :, rows], truth[:, rows], ids[:, rows]))
    counts.histogram.add_(table.histogram)
    if tolerance is None:
        tolerance = default_tolerance(*size)
    true_ids = sample.truth[0].numpy()
    boundaries = count_boundaries(band.ids, true_ids, labels.planes, tolerance=tolerance)
    tallies: list[Tally] = []
    if labels.objects is not None:
        mask = decode(labels, band, true_ids, enlarged=enlarged)
        tallies = labels.objects.score(mask, sample.mask[0].numpy())
    confusion = table.confusion.cpu().numpy()
    return ImageRecord(pair.name, sample.pair, confusion, boundaries, tallies, pair.source)


def _bands(masks: Tensor) -> Iterator[slice]:
    """Yield the rows of masks (1, H, W), a band at a time."""
    _, height, width = masks.shape
    step = max(1, AT_ONCE // width)
    for top in range(0, height, step):
        yield slice(top, top + step)


def resize(logits: Tensor, size: torch.Size) -> Tensor:
    """Return logits (N, C, h, w) at another size, interpolated as for a predicted mask."""
    if logits.shape[-2:] == size:
        return logits
    return F.interpolate(logits, size, mode="bilinear", align_corners=False)


def decide(logits: Tensor, threshold: float | None, head: Head) -> PredictedBand:
    """Return the prediction for logits (1, C, H, W), as predict.py makes it of them; see `Prediction`."""
    scores = head.reduce(logits)[0].cpu().contiguous().numpy()
    return PredictedBand(slice(None), scores, threshold, head)


def decode(labels: Labels, band: PredictedBand, truth: Ids, *, enlarged: float = 1.0) -> Mask:
    """Return the mask (H, W) that labels make of a prediction, without pixels that `truth` ignores."""
    mask, _ = labels.decode([band], (truth.shape[0], truth.shape[1]), enlarged=enlarged)
    mask[truth == IGNORE_ID] = IGNORE_ID if labels.objects is None else 0
    return mask
