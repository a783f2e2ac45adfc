"""The parts that settings of a run ask for, imported if they do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from unet_ddp.cli import with_saved
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.distributed.world import World
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.run_parts import RunParts
from unet_ddp.settings import Kind, names_of, values_of, with_values
from unet_ddp.training.state import TrainState

_OF_STEPS = "changed since: ", "batch size ", "--accumulate "  # how notes of the start begin


def find_same_bits(config: TrainConfig, log: Callable[[str], None]) -> AbstractContextManager[None]:
    """Return a context in which equal runs have equal bits on a GPU, too, if --deterministic asks for it."""
    if not config.launch.deterministic:
        return nullcontext()
    from unet_ddp.extras.diagnose.deterministic import deterministic

    return deterministic(log)


def open_run(folder: RunFolder, config: TrainConfig) -> StartPoint:
    """Lock a run's folder, and return what the run starts from: its checkpoint, or the weights that are given.

    Raises:
        UserError: see `RunFolder.open`, or the weights can't be read.
    """
    start = folder.open(config)
    if not start.is_new or not (config.run.load or config.network.encoder_weights):
        return start
    from unet_ddp.extras.transfer.fit import read_weights

    return replace(start, weights=read_weights(config))


def suit_network(config: TrainConfig, data: PreparedData) -> tuple[dict[str, Any], str]:
    """Return settings of a new run that suit its data, and a line about them: ImageNet weights, or none.

    They must be installed. A run whose settings name a network keeps it.
    """
    from unet_ddp.extras.transfer.choice import choose_encoder

    choice = choose_encoder(config, data.split, data.format, data.smallest)
    if choice is None or not choice.is_installed:
        return {}, ""
    line = (
        f"few images ({choice.count}), so from ImageNet weights: {choice.flags}; "
        "a new run with --model unet trains the classic U-Net"
    )
    return choice.values, line


def suit_run(
    config: TrainConfig, data: PreparedData, start: StartPoint, world: World
) -> tuple[TrainConfig, StartPoint]:
    """Return settings and start of a run. Of a new one, the settings suit its data: see `suit_network`."""
    if not start.is_new:
        return config, start

    def choose() -> tuple[dict[str, Any], StartPoint] | None:
        values, line = suit_network(config, data)
        if not values:
            return None
        from unet_ddp.extras.transfer.fit import read_weights

        start.notes.append(line)
        return values, replace(start, weights=read_weights(with_values(config, values)))

    found = world.on_main(choose)
    if found is None:  # what `start` has, a file of weights too, is on all ranks already
        return config, start
    values, start = found
    return with_values(config, values), start  # each host has settings of its own


def keep_settings(config: TrainConfig, state: TrainState, start: StartPoint) -> TrainConfig:
    """Return the settings that files and reports have.

    A run with nothing left to train keeps what its checkpoint has, and no note says how its steps have changed.
    """
    if start.content is None or not state.is_over:
        return config
    start.notes[:] = [note for note in start.notes if not note.startswith(_OF_STEPS)]
    names, defaults = {*config.to_dict()}, values_of(TrainConfig())
    typed = names & config.given - names_of(TrainConfig, Kind.RUN_PLACE)
    typed |= names_of(TrainConfig, Kind.PER_STEP)  # that of each process is known without
    kept = with_values(config, {name: defaults[name] for name in typed})
    kept = with_saved(replace(kept, given=frozenset(names - typed)), start.content["config"])
    if kept.to_dict() != config.to_dict():
        start.notes.append("nothing is left to train, so the files of the run keep its settings")
    return kept


def choose_parts(config: TrainConfig) -> RunParts:
    """Return the parts that the settings of a run ask for."""
    parts = RunParts()
    if config.network.encoder_weights:
        from unet_ddp.extras.transfer.pretrained import normalise_for

        parts = replace(parts, encoder_pixels=normalise_for)
    if config.optimization.compile:
        from unet_ddp.extras.diagnose.compiled import compile_network, log_uncompiled

        parts = replace(parts, compile_network=compile_network, log_uncompiled=log_uncompiled)
    if config.launch.cache:
        from unet_ddp.extras.cache.samples import open_cache

        parts = replace(parts, open_cache=open_cache)
    return parts
