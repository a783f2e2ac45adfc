"""Find the checkpoint that a run continues from."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import torch

from unet_ddp.checkpoints.description import Best, Description, SavedRun, check_content
from unet_ddp.checkpoints.file import FORMAT, Content, load, load_or_previous, previous
from unet_ddp.checkpoints.run_files import find_checkpoints
from unet_ddp.config import TrainConfig
from unet_ddp.errors import UserError, count_of, join_some
from unet_ddp.files.closed import find_closed
from unet_ddp.files.contents import check_format
from unet_ddp.runs.replaced import Replaced as Replaced
from unet_ddp.runs.resume import StartPoint

_METADATA_OF_BEST = (
    "unet_ddp",
    "architecture",
    "labels",
    "preprocessing",
    "config",
    "names",
    "moved",
    "sources",
    "made_with",
)


@dataclass(frozen=True)
class SavedState:
    """The state of a run that a host has."""

    launchers: list[str]
    """Names of the torchruns that began or continued it: the run continues without a flag if one of
    them starts it again. Each host has one, and one that is left is enough. Their own count leaves
    out the restarts in which a host comes."""
    epoch: int
    step: int
    resume: object = None
    """The file that its last start resumed from."""


def choose_checkpoint(
    config: TrainConfig, launchers: Collection[str], torchruns: set[str]
) -> Path | None:
    """Return the checkpoint to resume from; None for a new run.

    A torchrun that restarts its workers starts the same command again: the run then continues, also
    one that had gone back to an earlier checkpoint or had deleted the run before. `launchers` are the
    names of the torchruns of this start, `torchruns` those without a --rdzv-id's.

    Raises:
        UserError: --overwrite would delete the run that this --rdzv-id began.
    """
    launch, folder = config.launch, config.folder
    state = read_state(folder) if launchers else None
    wanted = None if launch.resume is None else config.resume_file.name
    if state is None or set(state.launchers).isdisjoint(launchers):
        return None if wanted is None else folder / wanted
    if wanted not in (None, "last.pt", state.resume):
        return folder / wanted
    if launch.overwrite and wanted is None and torchruns.isdisjoint(state.launchers):
        raise UserError(
            f"{folder}: its run began with this --rdzv-id, which continues it: leave --overwrite out, or "
            "start a new run with another --rdzv-id"
        )
    return folder / "last.pt"


def read_state(folder: Path) -> SavedState | None:
    """Return what a host's last.pt says, without its tensors; None if there is none to be read."""
    for path in (folder / "last.pt", previous(folder / "last.pt")):
        with suppress(Exception):  # corrupt: whoever resumes it says so
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            position = content["position"]
            return SavedState(
                [name for name in content["launchers"] if isinstance(name, str)],
                int(position["epoch"]),
                int(position["step"]),
                content["resume"],
            )
    return None


def read_checkpoint(path: Path, *, overwrite: bool) -> StartPoint:
    """Return the run to continue from `path`, or from the file before it if `path` is corrupt.

    Raises:
        UserError: there is none that can be resumed, or the run has continued after it and is not to
            be overwritten.
    """
    folder, last = path.parent, path.with_name("last.pt")
    if not path.is_file() and not previous(path).is_file():
        raise no_checkpoint(path)
    try:
        content, source, warning = load_or_previous(path)
    except UserError as error:
        raise UserError(f"{error}: {_advise_without(path)}") from None
    check_format(source, content, FORMAT)
    if "optimizer" not in content:
        raise UserError(
            f"{source}: contains weights only; resume from a last.pt, or start from it with --load and --exp-name NAME"
        )
    files = [*_find_epochs(folder), last]
    later = [file for file in files if file.is_file() and file.name > path.name]
    if later and not overwrite:
        raise UserError(
            f"--resume {path}: its run has continued to {later[-1]}; use --overwrite to go back and "
            "lose that, or start another run from these weights with --load and --exp-name NAME"
        )
    saved = _check_run(source, content)
    position = saved.position
    notes = [warning] if warning else []
    unknown = sorted(saved.config.keys() - TrainConfig().to_dict().keys())
    if unknown:
        notes.append(f"left out, as this version has no such settings: {join_some(unknown, 5)}")
    notes.append(
        f"resuming {source}: {count_of(position.epoch, 'epoch')} and "
        f"{count_of(position.step, 'step')} are done"
    )
    content, due, lost_best = _find_best(folder, content)
    return StartPoint(content, source, notes=notes, due=due, lost_best=lost_best)


def no_checkpoint(path: Path) -> UserError:
    """Return the error of a --resume without the checkpoint `path`."""
    return find_closed(path) or UserError(
        f"{path}: no checkpoint to resume from; {_advise_without(path)}"
    )


def contains_a_run(place: Path, existing: Sequence[Path]) -> UserError:
    """Return the error of a new run where there is a run, which the files `existing` show."""
    names = [path.name for path in existing]
    advice = "continue it with --resume, "
    if {"last.pt", "last.1.pt", "last.json"}.isdisjoint(names):
        advice = ""
    return UserError(
        f"{place} contains a run ({names[0]}): {advice}choose another folder with --exp-name NAME, "
        "or delete it with --overwrite"
    )


def _advise_without(path: Path) -> str:
    """Return what to type where the checkpoint `path` can't be resumed from."""
    if path.name != "last.pt" and _read_best(path.with_name("last.pt")) is not None:
        return "continue its run from last.pt with --resume"
    for other in reversed(_find_epochs(path.parent)):
        if other != path and _read_best(other) is not None:
            return f"go back to an earlier one with --resume {quote(str(other))} --overwrite"
    if find_checkpoints(path.parent):
        return "start a new run with --overwrite, which deletes this one, or with --exp-name NAME"
    return "start a new run without --resume, or name the run with --exp-name"


def _find_epochs(folder: Path) -> list[Path]:
    """Return the epoch_*.pt that a run keeps in `folder`, the latest last."""
    return [path for path in find_checkpoints(folder) if path.name.startswith("epoch_")]


def _find_best(folder: Path, content: Content) -> tuple[Content, dict[str, Content], str]:
    """Return `content`, the best.pt that is due, and which one is lost, in words.

    A best.pt may not be the one that `content` names: a kill came between last.pt and it, or an
    earlier checkpoint is resumed. It is due if its weights are known; otherwise the best is the best
    of the epochs from here on.
    """
    best = content["best"]
    if best["score"] == -math.inf or _read_best(folder / "best.pt") == best:
        return content, {}, ""
    epoch = best["epoch"] + 1
    for donor in (content, folder / f"epoch_{epoch:04d}.pt"):
        with suppress(UserError):
            found = load(donor) if isinstance(donor, Path) else donor
            run = _check_run(folder, found)
            is_end = (run.position.epoch, run.position.step) == (epoch, 0)
            if is_end and run.best == Best(**best):
                return content, {"best.pt": compose_best(found)}, ""
    lost = f"{folder / 'best.pt'} is not the network of epoch {epoch}, the best so far"
    return {**content, "best": {**best, "score": -math.inf, "epoch": 0}}, {}, lost


def compose_best(content: Content) -> Content:
    """Return the content of best.pt at the end of the epoch whose last.pt has `content`."""
    about = {name: content[name] for name in _METADATA_OF_BEST if name in content}
    model = content["ema"] or content["model"]  # the same tensors: copied once
    return {**about, "model": model, "best": content["best"], "threshold": content["threshold"]}


def _read_best(path: Path) -> object:
    """Return the epoch and score of the best that a checkpoint names; None if it can't be read."""
    with suppress(UserError):
        best = load(path).get("best")
        if isinstance(best, dict) and all(
            isinstance(best.get(name), (int, float)) for name in ("score", "epoch")
        ):
            return best
    return None


def _check_run(source: Path, content: Content) -> SavedRun:
    """Return what a checkpoint says of its run; this and its network are checked."""
    check_content(Description, source, content)
    scaler = content.get("scaler")
    if scaler == {}:  # off
        content = {**content, "scaler": None}
    return check_content(SavedRun, source, content)
