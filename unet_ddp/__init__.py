"""unet_ddp: train a U-Net on any folder of images and masks, on one process or many."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unet_ddp.prediction.prediction import Prediction
    from unet_ddp.prediction.predictor import Predictor

__all__ = ["Prediction", "Predictor"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public class when it is first used: torch takes a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"unet_ddp.prediction.{name.lower()}"), name)
