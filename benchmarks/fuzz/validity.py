"""Checks, without the program's code, of a model's file before a mask may be written by it.

Each function returns why not, or an empty text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MOST = 10**7  # weights of the small networks here, by far
_RANGE = (("low", 0.0), ("high", 255.0), ("scale", 0.0))
_DTYPES = ("uint8", "uint16", "int16", "float32")


def find_invalid_checkpoint(path: Path) -> str:
    """Check a checkpoint of ours or of another program."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        return f"a checkpoint that is a {type(content).__name__}"
    version = content.get("format")
    if type(version) is not int or version != 1 or "architecture" not in content:
        return _find_invalid_foreign(content)
    architecture = content["architecture"]
    if not isinstance(architecture, Mapping):
        return f"architecture is a {type(architecture).__name__}"
    return (
        _find_invalid_weights(content.get("ema") or content.get("model"))
        or _find_invalid_labels(content.get("labels"), architecture.get("num_classes"))
        or _find_invalid_preprocessing(content.get("preprocessing"), architecture.get("channels"))
        or _find_invalid_threshold(content.get("threshold"))
    )


def find_invalid_export(path: Path) -> str:
    """Check an exported file."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if not np.isfinite(numpy_helper.to_array(tensor)).all():
            return f"weights {tensor.name} are not finite"
    (text,) = [item.value for item in model.metadata_props if item.key == "unet_ddp"]
    facts = json.loads(text)
    return (
        _find_invalid_labels(facts.get("labels"), 2)
        or _find_invalid_preprocessing(facts.get("preprocessing"), 3)
        or _find_invalid_threshold(facts.get("threshold"))
    )


def _find_invalid_foreign(content: Mapping[str, Any]) -> str:
    names = ("model", "state_dict", "model_state_dict", "ema")
    levels = (content[name] for name in names if isinstance(content.get(name), Mapping))
    level: Mapping[str, Any] = next(levels, content)
    weights = {key: value for key, value in level.items() if isinstance(value, Tensor)}
    values = level.get("mask_values", content.get("mask_values"))
    last = [value for key, value in weights.items() if str(key).endswith("outc.conv.weight")]
    if isinstance(values, (list, tuple)) and last and len(values) == max(2, len(last[0])):
        flat = [
            v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])
        ]
        most = 255 if isinstance(values[0], (list, tuple)) else 65535
        if not all(_is_number(v) and 0 <= v <= most for v in flat):
            return f"mask values {str(flat[:4])[:80]}"
        if len({str(value) for value in values}) < len(values):
            return f"mask values twice: {str(values)[:80]}"
    return _find_invalid_weights(weights)


def _find_invalid_weights(weights: Any) -> str:
    if not isinstance(weights, Mapping) or not weights:
        return "no weights"
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            return f"weights {name} are a {type(value).__name__}"
        if value.numel() > _MOST:
            return f"{value.numel()} weights {name}"
        if value.is_complex() or (value.is_floating_point() and not value.isfinite().all()):
            return f"weights {name} are not finite, or complex"
        if str(name).endswith("running_var") and bool((value < 0).any()):
            return f"{name} is negative"
    return ""


def _find_invalid_labels(labels: Any, classes: Any) -> str:
    if not isinstance(labels, Mapping) or not isinstance(labels.get("values"), (list, tuple)):
        return "labels without values"
    values, names = labels["values"], labels.get("names")
    most = 0xFFFFFF if labels.get("rgb") else 65535
    if not all(_is_whole(value) and 0 <= value <= most for value in values):
        return f"label values {str(values)[:80]}"
    if len(set(values)) != len(values) or len(values) != classes:
        return f"{len(values)} label values for {classes} classes, or one twice"
    if names and not (
        isinstance(names, (list, tuple))
        and len(names) == len(values)
        and all(isinstance(name, str) for name in names)
    ):
        return f"class names {str(names)[:80]}"
    return ""


def _find_invalid_preprocessing(pixels: Any, channels: Any) -> str:
    if not isinstance(pixels, Mapping):
        return f"preprocessing is a {type(pixels).__name__}"
    low, high, scale = (pixels.get(name, usual) for name, usual in _RANGE)
    mean, std = pixels.get("mean"), pixels.get("std")
    if not (_is_number(scale) and 0 < scale <= 1):
        return f"scale {str(scale)[:80]}"
    if not (_is_number(low) and _is_number(high) and low <= high):
        return f"range from {str(low)[:80]} to {str(high)[:80]}"
    if not (isinstance(mean, (list, tuple)) and isinstance(std, (list, tuple))):
        return "mean or std is no list"
    if not len(mean) == len(std) == channels == pixels.get("channels"):
        return f"{len(mean)} means and {len(std)} deviations of {str(channels)[:80]} channels"
    if not all(map(_is_number, (*mean, *std))) or min(std) <= 0:
        return f"mean {str(mean)[:80]} or std {str(std)[:80]}"
    if pixels.get("dtype", "uint8") not in _DTYPES:
        return f"dtype {str(pixels.get('dtype'))[:80]}"
    return ""


def _find_invalid_threshold(threshold: Any) -> str:
    if threshold is None or (_is_number(threshold) and 0 < threshold < 1):
        return ""
    return f"threshold {str(threshold)[:80]}"


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == int(value)
