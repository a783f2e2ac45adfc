"""The network in a checkpoint of ours or of another U-Net program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from unet_ddp.checkpoints.description import Description, check_content
from unet_ddp.checkpoints.file import Content, find_not_finite, load
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Colour
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import Limit, UserError, typed
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.storage import Url, as_path, exists

_PREFIXES = ("module.", "_orig_mod.")  # of DDP, DataParallel and torch.compile
_LEVELS = ("model", "state_dict", "model_state_dict", "ema")  # where programs keep the weights
_HEADS = ("outc.conv.weight", "segmentation_head.0.weight")  # the classic U-Net's and smp's
_FOREIGN_SCALE = 0.5  # the default of the well-known U-Net scripts, which do not store theirs

RUNS = Path("checkpoints")  # where runs are saved without --checkpoints

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
    """Least probability of the second of two classes where it is predicted; None for the most
    probable class."""
    run: Content = field(default_factory=dict)
    """The config, names and best epoch of the run; empty for another program's file."""

    @property
    def is_bfloat16(self) -> bool:
        """True if the run settled on bfloat16; False for another program's file."""
        config = self.run.get("config") or {}
        return config.get("amp") is True and config.get("amp_dtype") == "bfloat16"


def read_model(path: Path) -> SavedModel:
    """Return the network in a checkpoint of ours or of another U-Net program.

    It accepts plain state dicts, with prefixes of DDP, DataParallel and torch.compile in any order,
    under "model", "state_dict" or "model_state_dict", and those of the well-known Carvana U-Net with
    their mask values. Of our checkpoints with a moving average it returns that.

    Raises:
        UserError: no checkpoint, or one without weights.
    """
    content = load(path)
    if {"architecture", "labels", "preprocessing"} <= content.keys():
        return _ours(path, content)
    level, mask_values, notes = content, content.get("mask_values"), []
    for name in _LEVELS:
        if isinstance(content.get(name), Mapping):
            level = content[name]
            mask_values = level.get("mask_values", mask_values)
            notes.append(f"weights found under {name!r}")
            break
    names = [name for name in level if isinstance(name, str) and name != "n_averaged"]
    tensors = {name: level[name] for name in names if isinstance(level[name], Tensor)}
    if not tensors:
        raise UserError(f"{path}: contains no weights; its keys are {', '.join(names)[:200]}")
    state, prefixes = strip_prefixes(tensors)
    if prefixes:
        notes.append(f"prefix {''.join(prefixes)} stripped")
    try:
        return _foreign(state, mask_values, notes)
    except UserError as error:
        raise UserError(f"{path}: {error}; fix it in the program that wrote the file") from None


def _ours(path: Path, content: Content) -> SavedModel:
    about = check_content(Description, path, content)
    state = strip_prefixes(about.ema or about.model)[0]
    run: Content = {name: content[name] for name in ("config", "names", "best") if name in content}
    if "optimizer" in content:  # last.pt: its weights are another epoch's than the best
        run.pop("best", None)
    described = about.architecture, about.labels, about.preprocessing
    return SavedModel(state, *described, [], about.threshold, run)


def _foreign(state: State, mask_values: Any, notes: list[str]) -> SavedModel:
    heads = [name for name in _HEADS if name in state and state[name].shape[:1] == (1,)]
    if heads:
        state = _two_classes(state, heads[0])
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
    plain = {"model": "unet", "channels": first.shape[1], "num_classes": last.shape[0]}
    plain |= {"width": first.shape[0], "bilinear": "up1.up.weight" not in state}
    return Architecture.from_dict(plain)


def _two_classes(state: State, head: str) -> State:
    """Add a background output that is always 0: softmax over (0, x) is sigmoid(x)."""
    heads: State = {
        key: torch.cat([torch.zeros_like(state[key]), state[key]])
        for key in (head, head.replace("weight", "bias"))
        if key in state
    }
    return {**state, **heads}


def _foreign_labels(mask_values: Any, num_classes: int) -> Labels:
    """Return labels from a list of values or of colours; {0, 255} or 0..C-1 without a list."""
    if not isinstance(mask_values, (list, tuple)) or len(mask_values) != num_classes:
        return Labels((0, 255) if num_classes == 2 else tuple(range(num_classes)))
    try:
        if isinstance(mask_values[0], (list, tuple)):
            colours = typed([list(value)[:3] for value in mask_values], tuple[Colour, ...])
            codes = [red << 16 | green << 8 | blue for red, green, blue in colours]
            return Labels(tuple(codes), rgb=True)
        plain = [int(value) if isinstance(value, bool) else value for value in mask_values]
        values = typed(plain, tuple[Annotated[float, Limit(0, 65535)], ...])
        if max(values) <= 1 and not all(value.is_integer() for value in values):
            values = [value * 255 for value in values]
        return Labels(tuple(int(value) for value in values))
    except (UserError, TypeError) as error:  # TypeError: a number among the colours
        raise UserError(f"mask_values: {error}") from None


def build_blank(architecture: Architecture, source: Path) -> nn.Module:
    """Return the network on the meta device, or with new weights if it can't be built there.

    Raises:
        UserError: see `build_network`; it names `source`.
    """
    try:
        with torch.device("meta"):
            return build_network(architecture)
    except UserError:  # unknown, or an encoder that can't be built there; none is large
        try:
            return build_network(architecture)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None


def build_loaded(architecture: Architecture, state: State, source: Path) -> nn.Module:
    """Return the network with these weights, the classic one without a copy of them.

    Raises:
        UserError: see `check_weights` and `build_network`.
    """
    blank = build_blank(architecture, source)
    check_weights(blank.state_dict(), state, source)
    if architecture.encoder is not None:  # it may have tensors that are not in the file
        network = build_network(architecture)
        network.load_state_dict(state)
        return network
    # Not `to_empty`, with which torch imports sympy: half a second.
    fitting = {name: state[name].to(like.dtype) for name, like in blank.state_dict().items()}
    blank.load_state_dict(fitting, assign=True)
    return blank.to(memory_format=torch.channels_last)


def check_weights(wanted: Mapping[str, Tensor], state: State, source: Path) -> None:
    """Check that `state` has the names and shapes of `wanted`, and numbers that training may give.

    Raises:
        UserError: they differ; the first few are named.
    """
    problems = [
        f"{name} is {str(tensor.dtype).removeprefix('torch.')}"
        for name, tensor in state.items()
        if name in wanted and tensor.is_floating_point() < wanted[name].is_floating_point()
    ]
    problems += [
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
    bad = find_not_finite(state)
    if bad is not None:
        raise UserError(f"{source}: {bad} contains nan or infinity; use another checkpoint")
    for name, tensor in state.items():
        if name.endswith(("running_var", "exp_avg_sq")) and bool((tensor < 0).any()):
            raise UserError(f"{source}: {name} is negative in places; use another checkpoint")


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


def find_model(given: str | None, folder: Path = RUNS) -> Path:
    """Return the checkpoint to use: the given, or that of the given or the newest run; else a UserError."""
    if given is None:
        runs = list_runs(folder)
        if not runs:
            raise UserError(f"{folder}/best.pt: not found; train first, or use --model FILE")
        return best_of(runs[0])
    path = as_path(given)
    is_run = path.is_dir()
    if isinstance(path, Url):  # last.pt is no object, see `find_newest`
        is_run = not path.suffix or (path.suffix != ".pt" and not exists(path))
    return best_of(path) if is_run else path


def list_runs(folder: Path = RUNS) -> list[Path]:
    """Return the folders of the runs in `folder`, itself among them, the newest first."""
    ages: dict[Path, float] = {}
    for name in ("best.pt", "last.pt"):
        for path in (folder / name, *folder.glob(f"*/{name}")):
            if path.is_file():
                ages[path.parent] = max(ages.get(path.parent, 0.0), path.stat().st_mtime)
    return sorted(ages, key=lambda run: -ages[run])


def best_of(run: Path) -> Path:
    """Return a run's best.pt, or last.pt if it has that alone, as one without validation."""
    if isinstance(run, Url):
        has_best = exists(run / "best.pt") or not exists(run / "last.json")
    else:
        has_best = (run / "best.pt").is_file() or not (run / "last.pt").is_file()
    return run / ("best.pt" if has_best else "last.pt")
