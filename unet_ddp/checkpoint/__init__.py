"""Checkpoints: written whole or not at all, read as tensors and plain values only.

Ours hold `network.state_dict()` with no prefix, and beside it all that is needed to go on
(last.pt) or to predict (best.pt). Those of other U-Net programs are taken for their weights.
"""

from __future__ import annotations

from unet_ddp.checkpoint.files import Content, load, load_or_previous, previous, save
from unet_ddp.checkpoint.folder import RunFolder, find_model, launch_name
from unet_ddp.checkpoint.models import (
    SavedModel,
    infer_unet,
    load_weights,
    read_model,
    strip_prefixes,
    with_scale,
)

__all__ = [
    "Content",
    "RunFolder",
    "SavedModel",
    "find_model",
    "infer_unet",
    "launch_name",
    "load",
    "load_or_previous",
    "load_weights",
    "previous",
    "read_model",
    "save",
    "strip_prefixes",
    "with_scale",
]
