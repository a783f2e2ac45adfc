"""Facts about a trained network: its scores, its data and its training, without names of files."""

from __future__ import annotations

import csv
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.checkpoints.file import Content
from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.data.labels import Labels
from unet_ddp.runs.writers import read_rows, score_column

_SETTINGS = ("epochs", "loss", "learning_rate", "augmentation", "crop_size", "encoder_weights", "precision", "seed")  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The facts of a model card; what the run's folder does not say is empty."""

    counts: dict[str, int]
    """Number of images in each part of the split."""
    scores: dict[str, float]
    """Validation scores by their columns in metrics.csv, of the epoch that was saved."""
    classes: list[tuple[str, float, float]]
    """Name, Dice and IoU of each class."""
    settings: dict[str, object]
    """Settings of the training."""


def find_facts(saved: SavedModel, source: Path, labels: Labels) -> Facts:
    """Return the facts in a checkpoint and next to it."""
    best = saved.run.get("best") or {}
    dice = best.get("dice")
    own = {} if dice is None else {"validation_dice": float(dice)}
    scores = _find_scores(saved.run, source.parent / "metrics.csv") or own
    pairs = [(name, (scores.get(score_column("dice", name)), scores.get(score_column("iou", name)))) for name in labels.class_names]  # fmt: skip
    classes = [
        (name, dice, iou) for name, (dice, iou) in pairs if dice is not None and iou is not None
    ]
    config = saved.run.get("config") or {}
    settings = {name: _tell(config[name]) for name in _SETTINGS if config.get(name) is not None}
    is_its_run = len(scores) > len(own)
    counts = _count_images(source.parent / "split.csv") if is_its_run else {}
    return Facts(counts, scores, classes, settings)


def _tell(value: object) -> object:
    """Return a setting's value; a path, an address or a part of the user's own is not told."""
    is_text = isinstance(value, str)
    return "own" if is_text and not str(value).replace("-", "_").isidentifier() else value


def _find_scores(run: Content, path: Path) -> dict[str, float]:
    """Return the scores of the epoch whose weights a checkpoint has; none if the file is of another run."""
    best = run.get("best") or {}
    if not {"epoch", "score"} <= {*best} or not path.is_file():
        return {}
    row = {each.get("epoch"): each for each in read_rows(path)}.get(str(int(best["epoch"]) + 1), {})
    scores = {}
    for name, text in row.items():
        if text and name.startswith(("validation_", "dice_", "iou_")):
            with suppress(ValueError):
                scores[name] = float(text)
    scores = {name: score for name, score in scores.items() if math.isfinite(score)}
    dice = best["dice"] or 0.0
    is_its = math.isclose(scores.get("validation_dice", -1.0), dice, rel_tol=1e-6)
    return scores if is_its else {}


def _count_images(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="", errors="surrogateescape") as file:
        return dict(Counter(row.get("split") or "" for row in csv.DictReader(file)))
