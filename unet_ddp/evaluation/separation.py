"""The separation of objects that suits the validation images best, stored in the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.world import World
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample, fetch
from unet_ddp.evaluation.scoring import find_objects, score_each
from unet_ddp.evaluation.validation_split import resizes_masks
from unet_ddp.files import write_errors
from unet_ddp.metrics.objects import ObjectCounts, count_by_class
from unet_ddp.network.precision import all_have_bfloat16
from unet_ddp.prediction.backends import build_model
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.checkpoint import load, save
from unet_ddp.runs.weights import read_model

SEEDS, EXTENTS = (0.5, 0.4, 0.6, 0.7, 0.8, 0.9), (0.5, 0.4, 0.6, 0.7)
"""Values that are tried for the two of `Labels.separation`; of equally good ones, the first."""


def settle_separation(
    folder: Path, pairs: Sequence[Pair], world: World, workers: int | None
) -> list[str]:
    """Find the separation of a run's best network, write it to best.pt, return lines about it.

    All ranks score; a run of classes, or without best.pt or `pairs`, keeps what it has.

    Raises:
        UserError: a file can't be read or written, on every rank.
    """
    best = folder / "best.pt"
    model = world.on_main(lambda: read_model(best) if best.is_file() else None)
    if model is None or model.labels is None or not model.labels.has_objects or not pairs:
        return []
    loaded = build_model(model, best, world.device, amp=all_have_bfloat16(world))
    predictor = Predictor([loaded], device=world.device)
    resize_masks = resizes_masks(model.run)
    dataset = EvaluationDataset(pairs, predictor, full_size=False, resize_masks=resize_masks)
    found, precision = search(predictor, dataset, world, workers)

    def write() -> None:
        content = load(best)
        content["labels"]["separation"] = list(found)
        with write_errors(best):
            save(best, content)

    world.on_main(write)
    return [
        f"objects: seeded from probability {found[0]:g}, extended to {found[1]:g}, the best of "
        f"validation (mean AP {precision:.4f}); {best}"
    ]


def search(
    predictor: Predictor, dataset: EvaluationDataset, world: World, workers: int | None
) -> tuple[tuple[float, float], float]:
    """Return the separation with the highest mean AP over all pairs, and that, on every rank."""
    tried = list(product(SEEDS, EXTENTS))
    labels = [replace(predictor.labels, separation=each) for each in tried]

    def count(sample: EvaluationSample) -> list[ObjectCounts]:
        logits, truth = predictor.logits(sample.image), sample.numbers[0].numpy()
        found = ((find_objects(logits, sample, each), each) for each in labels)
        return [ObjectCounts.total(count_by_class(mask, truth, each)) for mask, each in found]

    counted = score_each(count, fetch(dataset, world, workers=workers), world)
    precisions = [
        ObjectCounts.total(column).mean_precision for column in zip(*counted, strict=True)
    ]
    best = int(np.argmax(np.nan_to_num(precisions)))  # the first of equal ones
    return tried[best], precisions[best]
