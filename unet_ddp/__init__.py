"""unet_ddp: train a U-Net on any folder of images and masks, on one process or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unet_ddp.prediction.prediction import Prediction
    from unet_ddp.prediction.predictor import Predictor

__all__ = ["Prediction", "Predictor"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What other programs use, imported when it is asked for: torch takes a second."""
    if name == "Prediction":
        from unet_ddp.prediction.prediction import Prediction

        return Prediction
    if name == "Predictor":
        from unet_ddp.prediction.predictor import Predictor

        return Predictor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
