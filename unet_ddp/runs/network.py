"""Build the network of a run with the weights that it starts from."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from unet_ddp.checkpoints.weights import State
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.distributed.replica import without_reentrant
from unet_ddp.distributed.world import World
from unet_ddp.network.architecture import build_network
from unet_ddp.network.batchnorm import count_as_sound
from unet_ddp.network.precision import train_depthwise_in_float32
from unet_ddp.network.state_dicts import load_state
from unet_ddp.network.sync_batchnorm import synchronise_batchnorm
from unet_ddp.plugins import is_built_in
from unet_ddp.runs.resume import StartPoint
from unet_ddp.training.own_methods import check_methods
from unet_ddp.training.own_network import AcrossRanks, try_network
from unet_ddp.training.step import seed_all

if TYPE_CHECKING:
    from unet_ddp.runs.build import ModelSpec


def build_weights(
    config: TrainConfig, spec: ModelSpec, data: PreparedData, start: StartPoint, world: World
) -> tuple[nn.Module, nn.Module | None]:
    """Return the network on the device: new, pretrained or with the weights of a file.

    With one of the user's own comes a second one, built and loaded alike.
    """
    state: State = {}
    if start.weights is not None:
        state, notes = start.weights.fit(spec.architecture, data.labels)
        spec.notes.extend(notes)
    pretrained = None if start.content or start.weights else config.network.encoder_weights
    if pretrained is not None:

        def download() -> None:
            build_network(spec.architecture, encoder_weights=pretrained)

        world.on_main(download)  # by one process; the others find it in its cache
    seed_all(config.optimization.seed)  # the same first weights on every rank
    build = partial(_build_on_device, config, spec, world)
    network = build(state, encoder_weights=pretrained)
    if is_built_in("networks", name := spec.architecture.part):
        return network, None
    sides, size = data.crop_size or data.smallest, config.optimization.batch_size
    example = torch.rand(1 if size == 1 else 2, spec.architecture.channels, *sides)
    is_global = world.size > 1 and config.network.batch_norm == "global"
    reentrant = nullcontext() if world.store is None else without_reentrant(name)
    with spec.precision.autocast(), AcrossRanks() if is_global else nullcontext(), reentrant:
        return network, try_network(name, network, build, example.to(world.device))


def _build_on_device(
    config: TrainConfig,
    spec: ModelSpec,
    world: World,
    state: State | None = None,
    *,
    encoder_weights: str | None = None,
) -> nn.Module:
    """Return a network with new weights, or the given, in the form in which it is trained."""
    network = build_network(
        spec.architecture,
        encoder_weights=encoder_weights,
        checkpointing=config.network.checkpointing,
    )
    if not is_built_in("networks", spec.architecture.part):
        check_methods(f"--model {spec.architecture.part}", network)
    if world.device.type == "cpu" and spec.precision.dtype == torch.bfloat16:
        train_depthwise_in_float32(network)
    if state:
        load_state(network, state, strict=False)
    count_as_sound(network)
    network = network.to(world.device)
    if config.network.batch_norm == "local":
        return network
    return synchronise_batchnorm(network, world)
