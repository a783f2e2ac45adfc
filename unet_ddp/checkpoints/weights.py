"""The network in a checkpoint of ours or of another U-Net program."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor, nn

from unet_ddp.checkpoints.description import Description, check_content
from unet_ddp.checkpoints.file import Content, find_not_finite, load
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.files import as_path, read_errors
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.network.state_dicts import load_state
from unet_ddp.plugins import is_built_in

RUNS = Path("checkpoints")  # where runs are saved without --checkpoints
_DAY = 86400.0
_DIGESTED = 1024  # values of a tensor
_OURS = {"architecture", "labels", "preprocessing"}  # what our checkpoints have besides weights

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
    """Lines for the user about a file that does not describe itself, or whose network was never trained."""
    threshold: float | None = None
    """Least probability of the second of two classes where it is predicted; None for the most
    probable class."""
    run: Content = field(default_factory=dict)
    """The config, names and best epoch of the run; empty for another program's file."""
    score_name: str = "Dice"
    """The score that chooses the best epoch of the run."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By name, the texts of parts of the user's own, when the file was saved."""


def read_model(path: Path, scale: float | None = None) -> SavedModel:
    """Return the network in a checkpoint of ours, of a moving average that; or of another program.

    A file of the latter does not contain the `scale` of its images.

    Raises:
        UserError: no checkpoint, or one without weights, or the scale is known or out of range.
    """
    content = load(path)
    if not _is_ours(content):
        from unet_ddp.checkpoints.foreign import read_foreign

        model = read_foreign(path, content)
        if scale is None or model.preprocessing is None:
            return model
        if not 0 < scale <= 1:
            raise UserError(f"--scale {scale}: must be above 0 and at most 1")
        return replace(model, preprocessing=replace(model.preprocessing, scale=scale))
    about = check_content(Description, path, content)
    if scale is not None:
        raise UserError(
            f"--scale {scale}: this checkpoint contains its scale, {about.preprocessing.scale:g}; leave "
            "the flag out"
        )
    run: Content = {
        name: content[name] for name in ("config", "names", "moved", "best") if name in content
    }
    if "optimizer" in content:  # last.pt: its weights are another epoch's than the best
        run.pop("best", None)
    return SavedModel(
        about.ema or about.model,
        about.architecture,
        about.labels,
        about.preprocessing,
        _warn_of_no_steps(path, content),
        about.threshold,
        run,
        about.score_name,
        about.sources or {},
    )


def _is_ours(content: Content) -> bool:
    """Return whether a checkpoint is of this program, also of a later format with other keys."""
    return content.keys() >= _OURS or "unet_ddp" in content


def _is_untrained(content: Content) -> bool:
    """Return whether a last.pt is from before the first step of its run."""
    position = content.get("position")
    return isinstance(position, dict) and position.get("epoch") == position.get("step") == 0


def _warn_of_no_steps(path: Path, content: Content) -> list[str]:
    """Return a warning about a network that was not trained; nothing for others."""
    if not _is_untrained(content):
        return []
    config = content.get("config") or {}
    weights = "random"
    if config.get("load") or config.get("encoder_weights"):
        weights = "those that the run began with"
    return [f"warning: {path}: 0 steps trained: its weights are {weights}"]


def build_blank(architecture: Architecture, source: Path) -> nn.Module:
    """Return the network on the meta device, or with new weights if it can't be built there.

    One of the user's own is built as for training: it may have tensors that no file has.

    Raises:
        UserError: see `build_network`; it names `source`.
    """
    if is_built_in("networks", architecture.part):
        with suppress(UserError), torch.device("meta"):
            return build_network(architecture)
    try:  # own, unknown, or an encoder that can't be built there; none is large
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
    if architecture.part != "unet":  # it may have tensors that are not in the file
        network = build_network(architecture) if architecture.part == "smp" else blank
        load_state(network, state)
        return network
    # Not `to_empty`, with which torch imports sympy: half a second.
    fitting = {name: state[name].to(like.dtype) for name, like in blank.state_dict().items()}
    load_state(blank, fitting, assign=True)
    return blank.to(memory_format=torch.channels_last)


def check_weights(wanted: Mapping[str, Tensor], state: State, source: Path) -> None:
    """Check that `state` has the names and shapes of `wanted`, and numbers that training may give.

    Raises:
        UserError: they differ; the first few are named.
    """
    problems = []
    for name in {**wanted, **state}:
        difference = _compare(state.get(name), wanted.get(name))
        if difference:
            problems.append(f"{name} {difference}")
    if problems:
        shown = "; ".join(problems[:3])
        if len(problems) > 3:
            shown += f"; and {len(problems) - 3} more"
        raise UserError(
            f"{source}: these weights belong to another network: {shown}; "
            "use the flags it was trained with"
        )
    bad = find_not_finite(state)
    if bad is not None:
        raise UserError(f"{source}: {bad} contains nan or infinity; use another checkpoint")
    for name, tensor in state.items():
        if name.endswith(("running_var", "exp_avg_sq")) and bool((tensor < 0).any()):
            raise UserError(f"{source}: {name} is negative in places; use another checkpoint")


def _compare(found: Tensor | None, wanted: Tensor | None) -> str:
    """Return in which way a tensor of a file is not that of a network; empty if it fits."""
    if found is None:
        return "is missing in the file"
    if wanted is None:
        return "is not in the network"
    if wanted.is_floating_point() and not found.is_floating_point():
        return f"is {str(found.dtype).removeprefix('torch.')}"
    if found.shape != wanted.shape:
        own, other = ", ".join(map(str, found.shape)), ", ".join(map(str, wanted.shape))
        return f"is ({own}) in the file, ({other}) in the network"
    return ""


def digest_weights(state: State) -> str:
    """Return a digest that tells networks apart: of some values of each tensor, because training changes all tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        values = tensor.detach().flatten()[:_DIGESTED].double().cpu().numpy()
        digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()


@read_errors()
def find_model(given: str | None, folder: Path = RUNS, *, typed: str = "--model {}") -> Path:
    """Return the checkpoint to use: the given, or that of the given or the newest run.

    `typed` is what a user types to name one, of which {} is the path.

    Raises:
        UserError: there is no run, or runs of the newest one's day are for other data.
    """
    if given is None:
        runs = list_runs(folder)
        if not runs:
            named = typed.format("RUN/best.pt")
            raise UserError(f"{folder}/best.pt: not found; train first, or use {named}")
        _check_alike(runs, folder, typed)
        return best_of(next(iter(runs)))
    path = as_path(given)
    return best_of(path) if path.is_dir() else path


def list_runs(folder: Path = RUNS) -> dict[Path, float]:
    """Return the folders of the runs in `folder`, itself among them, and when each was last saved.

    The newest is the first. Runs without a step that are newer than another one are left out.
    """
    times: dict[Path, float] = {}
    for name in ("best.pt", "last.pt"):
        for path in (folder / name, *folder.glob(f"*/{name}")):
            if path.is_file():
                times[path.parent] = max(times.get(path.parent, 0.0), path.stat().st_mtime)
    runs = dict(sorted(times.items(), key=lambda item: -item[1]))
    trained = dropwhile(lambda run: not _has_steps(run), runs)  # reads as few as it can
    return {run: runs[run] for run in trained} or runs


def _has_steps(run: Path) -> bool:
    """Return whether the network of a run was trained, or can't be read."""
    path, rows = best_of(run), run / "metrics.csv"
    if path.name == "best.pt" or (rows.is_file() and rows.stat().st_size):
        return True
    with suppress(UserError):
        return not _is_untrained(load(path, mapped=True))
    return True


def _check_alike(runs: Mapping[Path, float], folder: Path, typed: str) -> None:
    """Check that of the runs that were saved within a day of the newest, all are for the same data."""
    kinds: dict[str, Path] = {}
    newest = max(runs.values())
    for run, saved in runs.items():
        if newest - saved < _DAY:
            best = best_of(run)
            kinds.setdefault(_describe_data(best), best)
    kinds.pop("", None)
    if len(kinds) > 1:
        choices = [f"{typed.format(quote(str(path)))} ({data})" for data, path in kinds.items()]
        raise UserError(
            f"{folder}: its newest runs are of one day and for other data; use {' or '.join(choices)}"
        )


def _describe_data(path: Path) -> str:
    """Return the channels and classes of a network; empty if it was not trained or can't be read."""
    try:
        content = load(path, mapped=True)
        if not _is_ours(content):
            return "of another program"
        if _is_untrained(content):
            return ""
        about = check_content(Description, path, content)
    except UserError:
        return ""
    return f"channels: {about.preprocessing.channels}, {about.labels.describe()}"


def best_of(run: Path) -> Path:
    """Return a run's best.pt, or what its folder has instead.

    That is last.pt of one without validation, and model.safetensors of a folder that `export --card` wrote.
    """
    paths = [run / name for name in ("best.pt", "last.pt", "model.safetensors")]
    return next((path for path in paths if path.is_file()), paths[0])
