"""Scoring a trained network on pairs of images and masks, exactly, on any number of ranks."""

from __future__ import annotations

from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample
from unet_ddp.evaluation.files import FILES, result_files
from unet_ddp.evaluation.result import Evaluation, ImageRecord
from unet_ddp.evaluation.scoring import decide, score_pairs
from unet_ddp.evaluation.trained import Trained, check_described, one_thread, resize

__all__ = [
    "FILES",
    "Evaluation",
    "EvaluationDataset",
    "EvaluationSample",
    "ImageRecord",
    "Trained",
    "check_described",
    "decide",
    "one_thread",
    "resize",
    "result_files",
    "score_pairs",
]
