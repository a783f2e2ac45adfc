"""What is known of a trained network: its scores, its data and its training, without names of files."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.checkpoints.file import Content
from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.data.labels import Labels

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
    row = _find_epoch(saved.run, source.parent / "metrics.csv")
    scores = {name: float(text) for name, text in row.items() if name and _is_score(name, text)}
    best = saved.run.get("best") or {}
    if "score" in best:
        scores.setdefault("validation_dice", float(best["score"]))
    pairs = [(name, (scores.get(f"dice_{name}"), scores.get(f"iou_{name}"))) for name in labels.class_names]  # fmt: skip
    classes = [
        (name, dice, iou) for name, (dice, iou) in pairs if dice is not None and iou is not None
    ]
    config = saved.run.get("config") or {}
    settings = {name: config[name] for name in _SETTINGS if config.get(name) is not None}
    return Facts(_count_images(source.parent / "split.csv"), scores, classes, settings)


def _is_score(name: str, text: str) -> bool:
    return bool(text) and name.startswith(("validation_", "dice_", "iou_")) and text != "nan"


def _find_epoch(run: Content, path: Path) -> dict[str, str]:
    """Return the row of the epoch whose weights a checkpoint has, empty if none is known."""
    best = run.get("best") or {}
    if "epoch" not in best or not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row.get("epoch"): row for row in csv.DictReader(file)}
    return rows.get(str(int(best["epoch"]) + 1), {})


def _count_images(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="", errors="surrogateescape") as file:
        return dict(Counter(row.get("split") or "" for row in csv.DictReader(file)))
