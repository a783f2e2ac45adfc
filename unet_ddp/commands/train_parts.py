"""The parts that settings of a run ask for, imported if they do."""

from __future__ import annotations

from dataclasses import replace

from unet_ddp.config import TrainConfig
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.run_parts import RunParts


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
