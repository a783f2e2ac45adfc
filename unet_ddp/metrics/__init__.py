"""Scores from integer counts, which add up the same in any order and on any ranks."""

from __future__ import annotations

from unet_ddp.metrics.boundary import BoundaryCounts, count_boundaries, default_tolerance
from unet_ddp.metrics.counts import BINS, Counts, confidence, confusion, histogram
from unet_ddp.metrics.curves import Calibration, CalibrationBin, ThresholdCurve
from unet_ddp.metrics.scores import Scores, Validation, ratio

__all__ = [
    "BINS",
    "BoundaryCounts",
    "Calibration",
    "CalibrationBin",
    "Counts",
    "Scores",
    "ThresholdCurve",
    "Validation",
    "confidence",
    "confusion",
    "count_boundaries",
    "default_tolerance",
    "histogram",
    "ratio",
]
