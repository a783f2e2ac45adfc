"""Parts that the core finds by name: it imports none of them, and each is imported when it is named."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_BUILT_IN = {
    "labels": {
        "classes": "unet_ddp.data.labels:Labels",
        "objects": "unet_ddp.extras.objects.labels:ObjectLabels",
    },
    "label_rules": {"objects": "unet_ddp.extras.objects.rules:infer_labels"},
    "planners": {
        "batch_size": "unet_ddp.extras.planners.batch_size:plan",
        "learning_rate": "unet_ddp.extras.planners.learning_rate:plan",
        "budget": "unet_ddp.extras.planners.budget:plan",
    },
    "outputs": {"objects": "unet_ddp.extras.objects.table:objects_file"},
}


def find(point: str, name: str) -> Any:
    """Return the part `name` of a point."""
    module, _, attribute = _BUILT_IN[point][name].partition(":")
    return getattr(import_module(module), attribute)
