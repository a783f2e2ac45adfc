"""What a run starts from: nothing, somebody's weights, or where it stopped."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from unet_ddp.config import USUAL_STEP, TrainConfig
from unet_ddp.data.splits import Split
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.runs import checkpoint
from unet_ddp.runs.folder import RunFolder, launch_name
from unet_ddp.runs.weights import SavedModel, read_model
from unet_ddp.training.batch_size import Trial, find_batch

# What weights hang on, and what says only where things are.
_FIXED = {"scale", "model", "encoder", "width", "bilinear", "channels", "nodata"}
_FIXED |= {
    "classes",
    "class_names",
    "palette",
    "binary",
    "mask_threshold",
    "invert",
    "ignore_index",
}
_PLACE = {"checkpoints", "exp_name", "load", "images", "masks", "wandb", "batch_size"}
_PLACE |= {"list", "val_images", "val_masks", "skip_scan"}


@dataclass(frozen=True)
class Begun:
    """What a run starts from."""

    content: checkpoint.Content | None = None
    """The checkpoint of the run that goes on; None for a new run."""
    weights: SavedModel | None = None
    """Weights for a new run to start from."""
    notes: list[str] = field(default_factory=list)


def open_run(config: TrainConfig, folder: RunFolder) -> Begun:
    """The run that goes on, or what a new one starts from; the folder is held, and as it was."""
    folder.hold()
    if _was_restarted(folder):
        return _reopen(config, folder, folder.last)
    if config.launch.resume is not None:
        return _reopen(config, folder, config.resume_file)
    folder.refuse_run(overwrite=config.launch.overwrite)
    weights = read_model(Path(config.run.load)) if config.run.load else None
    notes = [f"{config.run.load}: {note}" for note in weights.notes] if weights else []
    return Begun(weights=weights, notes=notes)


def _reopen(config: TrainConfig, folder: RunFolder, path: Path) -> Begun:
    """The run that goes on from `path`."""
    if not path.is_file() and not checkpoint.previous(path).is_file():
        raise UserError(
            f"{path}: nothing to resume there; leave --resume out to begin, or name the run by "
            "--exp-name"
        )
    if path.name != folder.last.name and folder.last.exists() and not config.launch.overwrite:
        raise UserError(
            f"--resume {path}: its run has gone on since, to {folder.last}; give --overwrite to go "
            "back and lose that, or --load to begin another run from these weights"
        )
    content, path, damage = checkpoint.load_or_previous(path)
    if "optimizer" not in content:
        raise UserError(
            f"{path}: holds weights alone; resume from a last.pt, or begin from it by --load"
        )
    position = content["position"]
    done = f"resuming {path}: {position['epoch']} epochs and {position['step']} steps are done"
    return Begun(content, notes=[note for note in (damage, done) if note])


def _was_restarted(folder: RunFolder) -> bool:
    """Whether torchrun has restarted this run, so that it goes on by itself."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0" or not folder.last.is_file():
        return False
    name = launch_name()
    return name is not None and checkpoint.load_or_previous(folder.last)[0].get("launch") == name


def _note_changes(config: TrainConfig, begun: Begun) -> None:
    """Tell which settings differ from those that the run began with.

    Raises:
        UserError: one that its weights hang on.
    """
    assert begun.content is not None
    before, now = begun.content["config"], config.to_dict()
    changed = [
        f"{name} {before[name]} -> {value}"
        for name, value in now.items()
        if before.get(name, value) != value
        and name not in {*_PLACE, "images_per_step"}
        and not name.startswith("save_every")
    ]
    fixed = [words for words in changed if words.split()[0] in _FIXED]
    if fixed:
        raise UserError(
            f"--resume: {', '.join(fixed)}: a run keeps its network, scale and classes; leave the "
            "flag out, or begin a new run from its weights by --load"
        )
    if changed:
        begun.notes.append(f"changed since: {', '.join(changed)}")


def keep_global_batch(config: TrainConfig, world: World, begun: Begun) -> TrainConfig:
    """`config` with the batches that, on these processes, give the run's images per step.

    Raises:
        UserError: these processes can't share them, or the resumed run has others.
    """
    if begun.content is None:
        return _make_up(config, world)
    _note_changes(config, begun)
    images, accumulate = begun.content["images_per_step"], config.optimization.accumulate
    if config.optimization.images_per_step not in (None, images):
        raise UserError(
            f"--images-per-step {config.optimization.images_per_step}: the run takes {images} in each "
            "of its steps and keeps them; leave the flag out, or begin a new run by --load"
        )
    if config.optimization.batch_size == "auto" and images % world.size == 0:
        return _with(config, "auto", accumulate, images)
    if images % (world.size * accumulate):
        sizes = [str(n) for n in range(1, images + 1) if images % (n * accumulate) == 0]
        raise UserError(
            f"--resume: the run's {images} images per step can't be divided among {world.size} "
            f"processes; resume on {', '.join(sizes)} of them"
        )
    batch_size = images // (world.size * accumulate)
    if batch_size != config.optimization.batch_size:
        begun.notes.append(
            f"batch size {batch_size} on each of {world.size} process(es) keeps the run's {images} "
            "images per step"
        )
    if accumulate != begun.content["config"]["accumulate"]:
        begun.notes.append(
            f"--accumulate {accumulate}: batch statistics and Dice are those of "
            f"{batch_size * world.size} images now"
        )
    return _with(config, batch_size, accumulate)


def _make_up(config: TrainConfig, world: World) -> TrainConfig:
    """A new run's `config` with the accumulation that makes up its --images-per-step."""
    options, processes = config.optimization, f"{world.size} process(es)"
    images, batch_size = options.images_per_step, options.batch_size
    if images is None:
        return config
    at_once = world.size if batch_size == "auto" else batch_size * world.size
    if images % at_once:
        raise UserError(
            f"--images-per-step {images}: {processes} take {at_once} at once, which does not divide "
            "it; choose another number, of images, processes or --batch-size"
        )
    if batch_size == "auto":
        return config
    if options.accumulate not in (1, images // at_once):
        raise UserError(
            f"--images-per-step {images} of --batch-size {batch_size} on {processes} means --accumulate "
            f"{images // at_once}, not {options.accumulate}; leave one of them out"
        )
    return _with(config, batch_size, images // at_once)


def _with(
    config: TrainConfig,
    batch_size: int | Literal["auto"],
    accumulate: int,
    images_per_step: int | None = None,
) -> TrainConfig:
    """`config` with these; the images per step follow from the others, so one place says them."""
    options = replace(
        config.optimization,
        batch_size=batch_size,
        accumulate=accumulate,
        images_per_step=images_per_step,
    )
    return replace(config, optimization=options)


def fit_batch(
    config: TrainConfig, world: World, begun: Begun, trial: Trial, count: int
) -> TrainConfig:
    """`config` with numbers for ``--batch-size auto``: the largest batch that fits on every process.

    A run that goes on keeps the batch that it has, where it fits: its statistics depend on it.

    Args:
        count: training images; a step takes no more, unless it was told to.
    """
    options, size = config.optimization, world.size
    if options.batch_size != "auto":
        return config
    images = options.images_per_step or max(size, min(USUAL_STEP, count) // size * size)
    share, most = images // size, None
    if begun.content is not None and share % options.accumulate == 0:
        most = share // options.accumulate
    batch_size = find_batch(trial, world, share, most=most)
    accumulate = share // batch_size
    note = f"batch size auto: {batch_size} image(s) at once fit on each of {size} process(es)"
    if accumulate > 1:
        note += (
            f", {accumulate} times per step for {images}; batch statistics and Dice are those of "
            f"{batch_size * size} images"
        )
    begun.notes.append(note)
    return _with(config, batch_size, accumulate)


def split_fingerprint(split: Split) -> str:
    """A short name for which pairs there are to train on and to validate."""
    names = [[pair.name for pair in side] for side in (split.training, split.validation)]
    return hashlib.sha256(repr(names).encode("utf-8", "surrogateescape")).hexdigest()
