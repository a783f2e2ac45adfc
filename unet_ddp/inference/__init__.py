"""Trained networks as functions from images to masks; nothing in here that only training needs."""

from __future__ import annotations

from unet_ddp.inference.prediction import Prediction
from unet_ddp.inference.predictor import Predictor

__all__ = ["Prediction", "Predictor"]
