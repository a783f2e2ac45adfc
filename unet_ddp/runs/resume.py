"""The start of a run: new, from given weights, or resumed; and the settings that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from torch import Tensor

from unet_ddp.checkpoints.file import Content
from unet_ddp.checkpoints.weights import check_weights
from unet_ddp.checks.check import check_classes, prepare_data
from unet_ddp.checks.data_parts import DataParts
from unet_ddp.cli import read_recipe, with_saved
from unet_ddp.cli.recipes import is_same
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.device import is_faster_in_bfloat16
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of, join_some, shorten, typed
from unet_ddp.runs.run_parts import StartWeights
from unet_ddp.runs.same_data import advise_new_run, check_same_data
from unet_ddp.settings import Kind, Typed, as_flag, names_of, pairs_of, values_of, with_values
from unet_ddp.training.state import TrainState

_SHOWN = 80  # characters of a setting in a message


@dataclass(frozen=True)
class StartPoint:
    """The state that a run starts from: a checkpoint's, given weights, or new ones."""

    content: Content | None = None
    """Checkpoint of the run to continue; None for a new run."""
    source: Path = Path("last.pt")
    """Its file."""
    weights: StartWeights | None = None
    """For a new run to start from; None for new ones."""
    notes: list[str] = field(default_factory=list)
    """Lines for the user."""
    due: dict[str, Content] = field(default_factory=dict)
    """Checkpoints by name that are still to be written."""
    lost_best: str = ""
    """The best.pt that nothing can replace, in words."""
    files: dict[str, str] = field(default_factory=dict)
    """Texts by name that planners add to the run's folder."""

    @property
    def is_new(self) -> bool:
        """True if there is no run to continue."""
        return self.content is None

    @property
    def has_best(self) -> bool:
        """True if the best.pt in the folder is that of the run."""
        assert self.content is not None
        return not self.due and self.content["best"]["score"] > -math.inf  # nor is it lost

    def resolve_settings(self, config: TrainConfig, world: World) -> TrainConfig:
        """Return `config` with the saved settings that were not given, and the batch per process.

        Raises:
            UserError: a setting on which the weights depend has changed, or the run's images per
                step can't be divided among these processes.
        """
        if self.content is None:
            return self._resolve_new(config, world)
        before = values_of(config)
        autos = {name for name in ("learning_rate", "precision") if before[name] == "auto"}
        config = replace(config, given=config.given - autos)
        config = with_saved(config, self.content["config"])
        rate, precision = config.optimization.learning_rate, config.optimization.precision
        found = self.source.parent / "learning_rate.csv"  # by a run that was begun with auto
        if "learning_rate" in autos and not found.exists():
            self.notes.append(f"--learning-rate auto: the run keeps its {rate:g}")
        is_cpu = world.device.type == "cpu"
        if is_cpu and precision == "bfloat16" and not is_faster_in_bfloat16():
            self.notes.append(
                "bfloat16 is slow on this CPU; --precision float32 goes on without it"
            )
        self._note_changes(config)
        return self._keep_images_per_step(config, world)

    def _resolve_new(self, config: TrainConfig, world: World) -> TrainConfig:
        """Return a new run's `config` with its precision, and the accumulation for --images-per-step.

        The main process's CPU decides on bfloat16. It is saved with the run, whose precision then depends
        neither on the rank nor on where it resumes.
        """
        options, processes = config.optimization, count_of(world.size, "process")
        has_weights = self.weights is not None or config.network.encoder_weights is not None
        if options.freeze != "none" and not has_weights:
            raise UserError(
                "--freeze encoder: its weights are new, and nothing would train them; use --load or "
                "--encoder-weights too"
            )
        is_open = world.device.type == "cpu" and options.precision == "auto"
        if is_open and world.on_main(is_faster_in_bfloat16):
            config = with_values(config, {"precision": "bfloat16"})
        images, batch_size = options.images_per_step, options.batch_size
        if images is None:
            return config
        at_once = world.size if batch_size == "auto" else batch_size * world.size
        accumulate, rest = divmod(images, at_once)
        if rest:
            raise UserError(
                f"--images-per-step {images}: {at_once} at once on {processes} do not divide it; "
                "change the number of images or processes, or --batch-size"
            )
        if batch_size == "auto":
            return config
        if options.accumulate not in (1, accumulate):
            raise UserError(
                f"--images-per-step {images} of --batch-size {batch_size} on {processes} means "
                f"--accumulate {accumulate}, not {options.accumulate}; leave one of them out"
            )
        return with_values(config, {"accumulate": accumulate, "images_per_step": None})

    def _note_changes(self, config: TrainConfig) -> None:
        assert self.content is not None
        before = {
            **type(config)().to_dict(),
            **self.content["config"],
        }  # it may be older than a setting
        keeps = names_of(type(config), Kind.FIXED)
        silent = names_of(type(config), Kind.DATA_PLACE, Kind.RUN_PLACE, Kind.FILES, Kind.PER_STEP)
        changed = {}
        for name, value in config.to_dict().items():
            if name not in silent - keeps and not is_same(before[name], value):
                changed[name] = f"{name} {_show(before[name])} -> {_show(value)}"
        fixed = [text for name, text in changed.items() if name in keeps]
        if fixed:
            raise UserError(
                f"--resume: {', '.join(fixed)}: a run keeps its network, scale and classes, and the images of its epochs; leave the "
                f"flag out, or {advise_new_run(self.source)}"
            )
        for name, switched in pairs_of(type(config), Typed):
            if before.get(name) and name not in config.given:
                self.notes.append(f"no longer {switched}: that takes {as_flag(name)} each time")
        if changed:
            self.notes.append(f"changed since: {', '.join(changed.values())}")
        self.notes.extend(_describe_edits(self.source, before, config))

    def _keep_images_per_step(self, config: TrainConfig, world: World) -> TrainConfig:
        assert self.content is not None
        options, images = config.optimization, self.content["images_per_step"]
        accumulate = options.accumulate
        if options.images_per_step not in (None, images):
            raise UserError(
                f"--images-per-step {options.images_per_step}: the run takes {images} in each step and "
                f"keeps them; leave the flag out, or {advise_new_run(self.source)}"
            )
        if options.batch_size == "auto" and images % world.size == 0:
            return with_values(config, {"images_per_step": images})
        if images % accumulate:
            raise UserError(
                f"--accumulate {accumulate}: does not divide the run's {images} images per step"
            )
        batch_size, rest = divmod(images, world.size * accumulate)
        if rest:
            sizes = [str(n) for n in range(1, images + 1) if images % (n * accumulate) == 0]
            raise UserError(
                f"--resume: the run's {images} images per step can't be divided among {world.size} "
                f"processes; use {', '.join(sizes)} of them"
            )
        if batch_size != options.batch_size:
            self.notes.append(
                f"batch size {batch_size} on {count_of(world.size, 'process')} keeps the run's "
                f"{count_of(images, 'image')} per step"
            )
        if accumulate != self.content["config"].get("accumulate", accumulate):
            self.notes.append(
                f"--accumulate {accumulate}: batch statistics and Dice are now those of "
                f"{batch_size * world.size} images"
            )
        return with_values(config, {"batch_size": batch_size, "images_per_step": None})

    def prepare_data(self, config: TrainConfig, parts: DataParts) -> PreparedData:
        """Return the data set, found, checked, labelled and split; a resumed run's must be its own.

        Raises:
            UserError: it can't be trained on, or it is not the one that the run started with.
        """
        saved = self.content
        data = prepare_data(
            config.data,
            seed=config.optimization.seed,
            parts=parts,
            labels=Labels.from_dict(saved["labels"]) if saved else None,
            skip_bad=config.launch.skip_bad_files,
            moved=saved.get("moved", ()) if saved else None,
        )
        check_classes(data.labels, config.optimization.class_weights)
        if saved:
            data.notes.extend(check_same_data(saved, data, self.source, config.given))
        return data

    def restore(self, state: TrainState) -> None:
        """Restore the state of the run, each tensor of which must fit.

        Raises:
            UserError: one does not, or contains numbers that no training gives.
        """
        if self.content is None:
            return
        saved, source = self.content, self.source
        network = state.network.state_dict()
        for weights in (saved["model"], saved["ema"] or saved["model"]):
            check_weights(network, weights, source)
        loss = state.loss.state_dict()
        if saved["loss"].keys() != loss.keys():  # of another loss
            saved = {**saved, "loss": loss}
            self.notes.append(f"the state of the loss begins again: {source} has that of another")
        check_weights(loss, saved["loss"], source)
        moments, wanted = _name_moments(saved["optimizer"], state, source)
        check_weights(wanted, moments, source)
        position = saved["position"]
        if position["step"] > state.steps_per_epoch:
            raise UserError(
                f"{source}: position: step {position['step']} of an epoch of {state.steps_per_epoch}; use "
                "another checkpoint"
            )
        state.load_state_dict(saved)
        if state.schedule.anneal:
            self.notes.append(
                "the run's patience was over, so it ends after "
                f"{state.schedule.end // state.steps_per_epoch} epochs; --patience 0 takes that back"
            )
        if self.lost_best:
            advice = ": the best of the epochs from here on is saved there"
            if state.is_over:
                advice = f", and the run is over: predict with --model {quote(str(source))}, or train on with --resume and more --epochs"
            self.notes.append(self.lost_best + advice)

    def has_report(self, state: TrainState) -> bool:
        """Return whether there is something to report: not if the best network is lost for good."""
        return not self.lost_best or state.best > -math.inf


def _name_moments(
    optimizer: Mapping[str, object], state: TrainState, source: Path
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return AdamW's saved tensors by name, and tensors of the shapes that they must have."""
    found: dict[str, Tensor] = {}
    wanted: dict[str, Tensor] = {}
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    try:
        for k, saved in typed(optimizer.get("state"), dict[int, object]).items():
            if not 0 <= k < len(parameters):
                raise UserError(f"{k}; the network has {len(parameters)} parameters")
            for name, tensor in typed(saved, dict[str, Tensor]).items():
                found[f"optimizer.{k}.{name}"] = tensor
            wanted[f"optimizer.{k}.exp_avg"] = parameters[k]
            wanted[f"optimizer.{k}.exp_avg_sq"] = parameters[k]
            wanted[f"optimizer.{k}.step"] = parameters[k].new_zeros(())
    except UserError as error:
        raise UserError(f"{source}: optimizer: {error}") from None
    return found, wanted


def _describe_edits(source: Path, before: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Return a line about settings of the run's config.yaml that differ from its checkpoint's.

    They were edited, or typed for a resume that was killed before it saved. The batch size is left out:
    each resume writes that of its number of processes.
    """
    recipe = source.with_name("config.yaml")
    edited = []
    with suppress(UserError):  # none, or no recipe any more: it is replaced all the same
        for name, value in read_recipe(recipe).items():
            value = list(value) if isinstance(value, tuple) else value
            is_read = name in before.keys() - config.given - {"batch_size"}
            if is_read and not is_same(value, before[name]):
                edited.append(f"{name} {_show(value)}, {source.name} {_show(before[name])}")
    if not edited:
        return []
    return [f"{recipe} has {join_some(edited, 3)}: --resume reads the latter; use flags"]


def _show(value: object) -> str:
    """Return a setting of the run or of the command line for a message, text without quotes."""
    return value[:_SHOWN] if isinstance(value, str) else shorten(value)
