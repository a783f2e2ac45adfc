"""unet_ddp: train a U-Net on any folder of images and masks, on one process or many."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unet_ddp.commands.check_call import DataCheck, check
    from unet_ddp.commands.evaluate_call import EvaluationResult, evaluate
    from unet_ddp.commands.export_call import ExportResult, export
    from unet_ddp.commands.trained_run import TrainedRun
    from unet_ddp.data.labels import Labels
    from unet_ddp.errors import RunError, UserError
    from unet_ddp.prediction.prediction import Prediction
    from unet_ddp.prediction.predictor import Predictor
    from unet_ddp.train_stub import train

__all__ = [
    "DataCheck", "EvaluationResult", "ExportResult", "Labels", "Prediction", "Predictor", "RunError", "TrainedRun",
    "UserError", "check", "evaluate", "export", "train",
]  # fmt: skip
__version__ = "1.0.0"

_MODULES = {
    "DataCheck": "commands.check_call",
    "EvaluationResult": "commands.evaluate_call",
    "ExportResult": "commands.export_call",
    "Labels": "data.labels",
    "Prediction": "prediction.prediction",
    "Predictor": "prediction.predictor",
    "RunError": "errors",
    "TrainedRun": "commands.trained_run",
    "UserError": "errors",
    "check": "commands.check_call",
    "evaluate": "commands.evaluate_call",
    "export": "commands.export_call",
    "train": "api",
}


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes a second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"unet_ddp.{_MODULES[name]}"), name)
