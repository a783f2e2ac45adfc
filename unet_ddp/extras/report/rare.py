"""Kinds of images that are rare in training, and predicted badly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unet_ddp.data.dataset import RareKind
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.metrics.scores import Scores

_LOWER = 0.1  # by which the Dice is below that of all images


def describe_rare(evaluation: Evaluation, kinds: Sequence[RareKind]) -> list[str]:
    """Return a line for each kind whose Dice is much lower than that of all images, the lowest first."""
    everything = evaluation.scores.dice
    found = []
    for kind in kinds:
        confusion = np.sum([evaluation.records[row].confusion for row in kind.rows], axis=0)
        dice = Scores.from_confusion(confusion).dice
        if dice < everything - _LOWER:
            found.append((dice, kind))
    lines = []
    for dice, kind in sorted(found, key=lambda each: each[0]):
        share = f"{100 * kind.share:.0f} % of the training images"
        scores = f"Dice {dice:.2f} (all: {everything:.2f})"
        lines.append(f"rare in training, predicted badly: {kind.name}: {share}, {scores}")
    return lines
