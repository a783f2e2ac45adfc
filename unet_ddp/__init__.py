"""unet_ddp: train a U-Net on any folder of images and masks, on one process or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unet_ddp.inference import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What other programs use, imported when it is asked for: torch takes a second."""
    if name in __all__:
        from unet_ddp import inference

        return getattr(inference, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
