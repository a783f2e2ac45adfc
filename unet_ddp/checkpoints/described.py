"""Weights in a safetensors file that describes its network in its header, as `export --card` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unet_ddp.checkpoints.description import Description, check_content
from unet_ddp.checkpoints.file import FORMAT
from unet_ddp.checkpoints.weights import SavedModel, State
from unet_ddp.errors import UserError
from unet_ddp.files import as_path

_KEY = "unet_ddp"  # of our text among the header's
_SETTINGS = "precision", "class_field", "nodata", "resize_masks", "scale", "window"
"""The settings by which a network computes, and by which other images and masks are read; none names a file."""


def describe(saved: SavedModel) -> dict[str, Any]:
    """Return plain values of all that belongs to the weights of a network that is described."""
    assert saved.architecture and saved.labels and saved.preprocessing
    config = saved.run.get("config") or {}
    facts: dict[str, Any] = {
        "format": FORMAT,
        "architecture": saved.architecture.to_dict(),
        "labels": saved.labels.to_dict(),
        "preprocessing": saved.preprocessing.to_dict(),
        "threshold": saved.threshold,
        "config": {name: config[name] for name in _SETTINGS if name in config},
    }
    if "best" in saved.run and saved.run["best"]["score"] >= 0:  # JSON has no infinity
        facts["best"] = saved.run["best"]
    return facts


def write_described(saved: SavedModel, path: Path) -> None:
    """Write a network's weights, and its description in their header."""
    from safetensors.torch import save

    state = {name: tensor.contiguous().clone() for name, tensor in saved.state.items()}
    metadata = {"format": "pt", _KEY: json.dumps(describe(saved))}
    path.write_bytes(save(state, metadata))  # its save_file makes a file that others can't read


def read_described(path: Path, state: State) -> SavedModel | None:
    """Return the network in a file with these weights; None if its header does not describe it.

    Raises:
        UserError: the description is damaged, or another version's.
    """
    text = _read_text(as_path(str(path)))
    if text is None:
        return None
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError, TypeError):
        facts = None
    if not isinstance(facts, Mapping):
        raise UserError(f"{path}: its description is damaged; export it again")
    about = check_content(Description, path, {**facts, "model": state})
    run = {name: facts[name] for name in ("config", "best") if name in facts}
    described = about.architecture, about.labels, about.preprocessing
    return SavedModel(about.model, *described, [], about.threshold, run, about.score_name)


def _read_text(path: Path) -> Any:
    """Return our text in the header of a safetensors file, None if there is none, or in another file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if file.read(1) != b"{":
            return None
        header = json.loads(b"{" + file.read(length - 1))  # its reader has accepted it before
    return header.get("__metadata__", {}).get(_KEY)
