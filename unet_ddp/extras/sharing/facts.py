"""Facts about a trained network: its scores, its data and its training, without names of files."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.checkpoints.file import Content
from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.data.labels import Labels
from unet_ddp.runs.epoch_scores import chosen_by, scores_of
from unet_ddp.runs.writers import read_rows, score_column, to_float

_SETTINGS = ("epochs", "loss", "learning_rate", "augmentation", "crop_size", "encoder_weights", "precision", "seed")  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The facts of a model card; what the run's folder does not say is empty."""

    counts: dict[str, int]
    """Number of images in each part of the split."""
    scores: dict[str, float]
    """Validation scores by their names, of the epoch that was saved, as predictions have them."""
    classes: list[tuple[str, float, float]]
    """Name, Dice and IoU of each class of which they are known."""
    settings: dict[str, object]
    """Settings of the training."""


def find_facts(saved: SavedModel, source: Path, labels: Labels) -> Facts:
    """Return the facts in a checkpoint and next to it."""
    best = saved.run.get("best") or {}
    row = _find_row(best, source.parent / "metrics.csv")
    own = {"validation_score": str(best.get("score")), "threshold": str(saved.threshold or "")}
    scores = scores_of(row or own, saved.score_name)
    config = saved.run.get("config") or {}
    settings = {name: _tell(config[name]) for name in _SETTINGS if config.get(name) is not None}
    counts = _count_images(source.parent / "split.csv") if row else {}
    return Facts(counts, scores, _list_classes(row, scores, labels), settings)


def _tell(value: object) -> object:
    """Return a setting's value; a path, an address or a part of the user's own is not told."""
    is_text = isinstance(value, str)
    return "own" if is_text and not str(value).replace("-", "_").isidentifier() else value


def _find_row(best: Content, path: Path) -> Mapping[str, str]:
    """Return the row of metrics.csv of the epoch whose weights a checkpoint has; empty if the file is of another run."""
    if not best or not path.is_file():
        return {}
    row = {each.get("epoch"): each for each in read_rows(path)}.get(str(int(best["epoch"]) + 1), {})
    (score,) = chosen_by([row])
    return row if math.isclose(score, best["score"], rel_tol=1e-6) else {}


def _list_classes(
    row: Mapping[str, str], scores: Mapping[str, float], labels: Labels
) -> list[tuple[str, float, float]]:
    """Return the classes of which a row has scores as predictions have them; of two, it is the second."""
    if row.get("threshold"):
        return [(labels.class_names[1], scores["Dice"], scores["IoU"])]
    if labels.may_overlap:
        return []
    classes = []
    for name in labels.class_names:
        dice, iou = (to_float(row.get(score_column(score, name))) for score in ("dice", "iou"))
        if not math.isnan(dice + iou):
            classes.append((name, dice, iou))
    return classes


def _count_images(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="", errors="surrogateescape") as file:
        return dict(Counter(row.get("split") or "" for row in csv.DictReader(file)))
