"""Scores from integer counts, which add up the same in any order and on any ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unet_ddp.data.labels import IGNORE_ID


def confusion(predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
    """How many pixels of which class were taken for which.

    Args:
        predicted: class ids (N, H, W).
        masks: true class ids (N, H, W); IGNORE_ID is left out.

    Returns:
        (C, C) int64 on the masks' device: rows are the truth, columns the prediction.
    """
    valid = masks != IGNORE_ID
    cells = masks[valid].long() * num_classes + predicted[valid].long()
    return torch.bincount(cells, minlength=num_classes**2).view(num_classes, num_classes)


@dataclass(frozen=True)
class Scores:
    """Dice and IoU of each class over a whole data set; nan for a class that never occurs."""

    dice_per_class: list[float]
    iou_per_class: list[float]

    @classmethod
    def from_confusion(cls, counts: Tensor) -> Scores:
        """Scores of an (C, C) confusion matrix, exact to the last digit of float64."""
        table = counts.tolist()
        dice, iou = [], []
        for k, row in enumerate(table):
            hits, truth = row[k], sum(row)
            predicted = sum(other[k] for other in table)
            union = truth + predicted - hits
            dice.append(2 * hits / (truth + predicted) if union else math.nan)
            iou.append(hits / union if union else math.nan)
        return cls(dice, iou)

    @property
    def dice(self) -> float:
        """Of two classes, the foreground's Dice; of more, the mean over those that occur."""
        return _summary(self.dice_per_class)

    @property
    def iou(self) -> float:
        """Of two classes, the foreground's IoU; of more, the mean over those that occur."""
        return _summary(self.iou_per_class)


def _summary(per_class: list[float]) -> float:
    if len(per_class) == 2:
        return per_class[1]
    occurring = [value for value in per_class if not math.isnan(value)]
    return sum(occurring) / len(occurring) if occurring else math.nan
