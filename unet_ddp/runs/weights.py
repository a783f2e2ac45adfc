"""The network in a checkpoint of ours or of another U-Net program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import Architecture
from unet_ddp.runs.checkpoint import FORMAT, load

_PREFIXES = ("module.", "_orig_mod.")  # of DDP, DataParallel and torch.compile
_LEVELS = ("model", "state_dict", "model_state_dict", "ema")  # where programs keep the weights
_FOREIGN_SCALE = 0.5  # the default of the well-known U-Net scripts, which do not store theirs

State = dict[str, Tensor]


@dataclass(frozen=True)
class SavedModel:
    """Weights, and as much about them as their file contains."""

    state: State
    architecture: Architecture | None
    """None if neither the file nor the shapes show it."""
    labels: Labels | None
    preprocessing: Preprocessing | None
    notes: list[str]
    """Lines for the user about a file that does not describe itself; empty for ours."""
    threshold: float | None = None
    """Of two classes, the second is predicted where its probability is at least this; None for the
    most probable class."""


def read_model(path: Path) -> SavedModel:
    """Return the network in a checkpoint of ours or of another U-Net program.

    It accepts plain state dicts, with prefixes of DDP, DataParallel and torch.compile in any order,
    under "model", "state_dict" or "model_state_dict", and those of the well-known Carvana U-Net with
    their mask values. Of our checkpoints with a moving average it returns that.

    Raises:
        UserError: no checkpoint, or one without weights.
    """
    content = load(path)
    if content.get("format") == FORMAT and "architecture" in content:
        return _ours(path, content)
    level, mask_values, notes = content, content.get("mask_values"), []
    for name in _LEVELS:
        if isinstance(content.get(name), Mapping):
            level = content[name]
            mask_values = level.get("mask_values", mask_values)
            notes.append(f"weights found under {name!r}")
            break
    tensors = {k: v for k, v in level.items() if isinstance(v, Tensor) and k != "n_averaged"}
    if not tensors:
        raise UserError(
            f"{path}: contains no weights; its keys are {', '.join(map(str, level))[:200]}"
        )
    state, prefixes = strip_prefixes(tensors)
    if prefixes:
        notes.append(f"prefix {''.join(prefixes)} stripped")
    return _foreign(state, mask_values, notes)


def _ours(path: Path, content: Mapping[str, Any]) -> SavedModel:
    try:
        return SavedModel(
            strip_prefixes(content.get("ema") or content["model"])[0],
            Architecture.from_dict(content["architecture"]),
            Labels.from_dict(content["labels"]),
            Preprocessing.from_dict(content["preprocessing"]),
            [],
            content.get("threshold"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: written by another version of unet_ddp ({content.get('unet_ddp', '?')}), whose "
            f"checkpoints differ ({error}); use that version"
        ) from None


def _foreign(state: State, mask_values: Any, notes: list[str]) -> SavedModel:
    if state.get("outc.conv.weight") is not None and len(state["outc.conv.weight"]) == 1:
        state = _two_classes(state)
        notes.append(
            "one sigmoid output turned into two softmax outputs, which is the same function"
        )
    architecture = infer_unet(state)
    if architecture is None:
        return SavedModel(state, None, None, None, notes)
    notes.append(f"{architecture}, inferred from the weights' shapes")
    labels = _foreign_labels(mask_values, architecture.num_classes)
    notes.append(f"mask values {', '.join(map(labels.show, labels.values[:16]))}")
    channels = architecture.channels
    pixels = Preprocessing(channels, (0.0,) * channels, (1.0,) * channels, _FOREIGN_SCALE)
    notes.append(f"images divided by 255, at scale {_FOREIGN_SCALE} (default of --scale here)")
    return SavedModel(state, architecture, labels, pixels, notes)


def strip_prefixes(state: Mapping[str, Tensor]) -> tuple[State, list[str]]:
    """Strip wrapper prefixes (module., _orig_mod.) that all keys share; also return them."""
    plain, removed = dict(state), list[str]()
    while True:
        shared = [p for p in _PREFIXES if plain and all(key.startswith(p) for key in plain)]
        if not shared:
            return plain, removed
        removed.append(shared[0])
        plain = {key[len(shared[0]) :]: value for key, value in plain.items()}


def infer_unet(state: Mapping[str, Tensor]) -> Architecture | None:
    """Return the classic U-Net with parameters of these names and shapes; None if there is none."""
    first, last = state.get("inc.double_conv.0.weight"), state.get("outc.conv.weight")
    if first is None or last is None or first.ndim != 4 or last.ndim != 4:
        return None
    return Architecture(
        "unet",
        channels=first.shape[1],
        num_classes=last.shape[0],
        width=first.shape[0],
        bilinear="up1.up.weight" not in state,
    )


def _two_classes(state: State) -> State:
    """Add a background output that is always 0: softmax over (0, x) is sigmoid(x)."""
    heads: State = {
        key: torch.cat([torch.zeros_like(state[key]), state[key]])
        for key in ("outc.conv.weight", "outc.conv.bias")
        if key in state
    }
    return {**state, **heads}


def _foreign_labels(mask_values: Any, num_classes: int) -> Labels:
    """Return labels from a list of values or of colours; {0, 255} or 0..C-1 without a list."""
    if not isinstance(mask_values, (list, tuple)) or len(mask_values) != num_classes:
        return Labels((0, 255) if num_classes == 2 else tuple(range(num_classes)))
    if isinstance(mask_values[0], (list, tuple)):
        codes = [int(v[0]) << 16 | int(v[1]) << 8 | int(v[2]) for v in mask_values]
        return Labels(tuple(codes), rgb=True)
    values = [float(value) for value in mask_values]
    if max(values) <= 1 and not all(value.is_integer() for value in values):
        values = [value * 255 for value in values]
    return Labels(tuple(int(value) for value in values))


def load_weights(network: nn.Module, state: State, source: Path) -> None:
    """Load `state` into `network`.

    Raises:
        UserError: names or shapes differ; the first few are named.
    """
    wanted = network.state_dict()
    problems = [
        f"{name} is {_shape(state[name])} in the file, {_shape(wanted[name])} in the network"
        for name in wanted
        if name in state and state[name].shape != wanted[name].shape
    ]
    problems += [f"{name} is missing in the file" for name in wanted if name not in state]
    problems += [f"{name} is not in the network" for name in state if name not in wanted]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(
            f"{source}: these weights belong to another network: {'; '.join(problems[:3])}{more}; "
            "use the flags it was trained with"
        )
    network.load_state_dict(state)


def _shape(tensor: Tensor) -> str:
    return "(" + ", ".join(map(str, tensor.shape)) + ")"


def with_scale(model: SavedModel, scale: float | None) -> SavedModel:
    """Return `model` at another scale, for files that do not contain theirs.

    Raises:
        UserError: the file contains it, or the scale is out of range.
    """
    if scale is None or model.preprocessing is None:
        return model
    if not model.notes:
        raise UserError(
            f"--scale {scale}: this checkpoint contains its scale, {model.preprocessing.scale:g}; leave "
            "the flag out"
        )
    if not 0 < scale <= 1:
        raise UserError(f"--scale {scale}: must be above 0 and at most 1")
    return replace(model, preprocessing=replace(model.preprocessing, scale=scale))


def find_model(given: str | None, folder: Path = Path("checkpoints")) -> Path:
    """Return the checkpoint to predict with: the given one, the folder's, or its newest run's.

    Raises:
        UserError: there is none.
    """
    if given is not None:
        path = Path(given)
        return path / "best.pt" if path.is_dir() else path
    for name in ("best.pt", "last.pt"):
        found = [folder / name, *folder.glob(f"*/{name}")]
        found = [path for path in found if path.is_file()]
        if found:
            newest = max(found, key=lambda path: path.stat().st_mtime)
            return found[0] if found[0].parent == folder else newest
    raise UserError(f"{folder}/best.pt: not found; train first, or use --model FILE")
