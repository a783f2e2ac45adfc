"""Build what a run trains from its settings, its data and what it resumes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from unet_ddp import __version__
from unet_ddp.checkpoints.file import Content
from unet_ddp.config import PRESETS, OptimizationConfig, TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.loaders import Loaders, count_workers
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import describe_untried
from unet_ddp.distributed.replica import replicate
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of, from_plain
from unet_ddp.heads import find_head
from unet_ddp.network.architecture import (
    Architecture,
    choose_architecture,
    freeze_encoder,
    parameter_groups,
    trust,
)
from unet_ddp.network.precision import Precision
from unet_ddp.plugins import describe_changes, read_sources
from unet_ddp.runs.network import build_weights
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.run_parts import RunParts
from unet_ddp.runs.same_data import measure_files
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.own_holders import Numbers
from unet_ddp.training.own_loss import try_loss
from unet_ddp.training.state import AdamW, Schedule, TrainState
from unet_ddp.training.step import seed_all
from unet_ddp.training.tensors import WeightAverage


@dataclass(frozen=True)
class ModelSpec:
    """The network of a run and what surrounds it; nothing of it changes in training."""

    architecture: Architecture
    preprocessing: Preprocessing
    precision: Precision
    loss: SegmentationLoss
    sources: dict[str, str]
    """Text of the file of each part that is the user's own: kept in checkpoints, never run from there."""
    notes: list[str]  # lines for the user


def choose_model(
    config: TrainConfig,
    data: PreparedData,
    start: StartPoint,
    device: torch.device,
    *,
    parts: RunParts,
) -> ModelSpec:
    """Return the model of the checkpoint, as far as it describes one, otherwise that of the flags."""
    options = config.optimization
    architecture, preprocessing, notes = _choose_architecture(config, data, start, parts)
    loss = find_head(data.labels).make_loss(options).to(device)
    if loss.own_terms:
        seed_all(options.seed)  # the same first weights on every rank
        sides = data.crop_size or data.smallest
        loss, more = try_loss(loss, data.labels.num_classes, device, sides)
        notes += more
    precision = Precision(device, options.precision)
    sources, changes = _read_own_sources(config, architecture, start)
    return ModelSpec(architecture, preprocessing, precision, loss, sources, notes + changes)


def _read_own_sources(
    config: TrainConfig, architecture: Architecture, start: StartPoint
) -> tuple[dict[str, str], list[str]]:
    """Return the text of each part that is the user's own, and lines about those that have changed."""
    parts = [("--loss", "losses", name) for name in config.optimization.loss_terms]
    parts.append(("--model", "networks", architecture.part))
    if config.data.augmentation not in PRESETS:
        parts.append(("--augmentation", "augmentations", config.data.augmentation))
    parts += [("--reader", "readers", name) for name in config.data.reader]
    parts += [("--callback", "callbacks", name) for name in config.launch.callback]
    sources: dict[str, str] = {}
    before = (start.content or {}).get("sources") or {}
    changes = []
    for flag, point, part in parts:
        texts = read_sources(point, part)
        sources |= texts
        for change in describe_changes(flag, part, texts, before):
            said = f"{change} since the run's last save"
            # A callback changes no weights.
            if not config.launch.changed_code and point != "callbacks":
                raise UserError(
                    f"{said}; {start.source} has the old text, under sources. Continue with the new one by "
                    "--changed-code"
                )
            changes.append(said)
    return sources, changes


def _choose_architecture(
    config: TrainConfig, data: PreparedData, start: StartPoint, parts: RunParts
) -> tuple[Architecture, Preprocessing, list[str]]:
    network, saved = config.network, start.content
    if saved is not None:
        architecture = from_plain(Architecture, saved["architecture"])
        architecture = trust(architecture, network.model, start.source, "--model")
        return architecture, Preprocessing.from_dict(saved["preprocessing"]), []
    architecture = choose_architecture(
        network.model,
        network.encoder,
        channels=data.format.channels,
        num_classes=data.labels.num_classes,
        width=network.width,
        bilinear=network.bilinear,
    )
    preprocessing = Preprocessing.for_data(data.format, data.range, scale=config.data.scale)
    if parts.encoder_pixels and architecture.part == "smp" and architecture.encoder:
        preprocessing = parts.encoder_pixels(architecture.encoder, preprocessing)
    notes: list[str] = []
    if start.weights is not None:
        architecture, preprocessing, notes = start.weights.describe(architecture, preprocessing)
    return architecture, preprocessing, notes


def new_schedule(options: OptimizationConfig, steps: int) -> Schedule:
    """Return the schedule of a run of `steps` steps an epoch; a planner sets a rate that is auto."""
    rate = 0.0 if options.learning_rate == "auto" else options.learning_rate
    return Schedule(rate, options.epochs * steps, options.warmup / 100)


def build_state(
    config: TrainConfig,
    spec: ModelSpec,
    data: PreparedData,
    start: StartPoint,
    loaders: Loaders,
    world: World,
    parts: RunParts,
) -> TrainState:
    """Return the network with the weights it starts from, and the state of its training."""
    options, steps = config.optimization, loaders.training.sampler.steps
    _check_patience(options, data)
    network, twin = build_weights(config, spec, data, start, world)
    frozen = freeze_encoder(network) if options.freeze == "encoder" else []
    schedule = new_schedule(options, steps)
    sides = [max(64, min(n, 256)) for n in data.crop_size or data.smallest]  # not extreme
    example = torch.zeros(2, spec.architecture.channels, *sides, device=world.device)
    is_own, compress = twin is not None, options.compress_gradients
    replica = replicate(network, example, world, compress=compress, may_skip=is_own)
    own_parts = {**({"model": network} if is_own else {}), **spec.loss.own_terms}
    state = TrainState(
        network,
        replica,
        _make_optimizer(config, network, spec.loss, schedule),
        spec.precision,
        spec.loss,
        spec.preprocessing,
        schedule,
        steps,
        options.patience,
        options.seed * world.size + world.rank,
        WeightAverage(network, options.ema, twin) if options.ema else None,
        parts.compile_network(replica, spec.loss, world) if parts.compile_network else None,
        frozen,
        has_local_norms=config.network.batch_norm == "local" and world.size > 1,
        numbers=Numbers(own_parts),
        has_own_buffers=bool(own_parts),
    )
    start.restore(state)
    return state


def _check_patience(options: OptimizationConfig, data: PreparedData) -> None:
    if options.patience and not data.split.validation:
        raise UserError(
            f"--patience {options.patience}: there are no validation images to score; use --validation "
            "PERCENT, or leave --patience out"
        )


def _make_optimizer(
    config: TrainConfig, network: nn.Module, loss: nn.Module, schedule: Schedule
) -> AdamW:
    """Return the optimizer of the network, and of a loss that has parameters.

    The last layer's rate is up to 10 times the others', so that its peak is 0.01. AdamW moves a weight by at most
    the rate in a step. With random weights, short runs kept what the seed had made of this layer (docs/quality-log.md).
    """
    options, last_rate = config.optimization, 1.0
    if schedule.highest and not config.run.load:
        last_rate = min(10.0, max(1.0, 0.01 / schedule.highest))
    groups = parameter_groups(network, options.encoder_rate, last_rate)
    if trained := [*loss.parameters()]:
        groups.append({"params": trained, "lr_scale": 1.0, "weight_decay": 0.0, "is_loss": True})
    return AdamW(groups, weight_decay=options.weight_decay, fused=True)


def build_metadata(
    config: TrainConfig, spec: ModelSpec, data: PreparedData, loaders: Loaders, world: World
) -> Content:
    """Return the part of a checkpoint that stays the same in a run, as plain values."""
    return {
        "unet_ddp": __version__,
        "architecture": spec.architecture.to_dict(),
        "labels": data.labels.to_dict(),
        "preprocessing": spec.preprocessing.to_dict(),
        "config": config.to_dict(),
        **({"sources": spec.sources} if spec.sources else {}),
        "names": data.split.fingerprint,
        **({"moved": list(data.split.moved)} if data.split.moved else {}),
        "files": measure_files(data.split),
        "crop_size": list(data.crop_size) if data.crop_size else None,
        "images_per_step": loaders.training.sampler.images,
        "world_size": world.size,
    }


def describe_run(
    config: TrainConfig, spec: ModelSpec, state: TrainState, loaders: Loaders, world: World
) -> list[str]:
    """Return lines for the user: the network, the run, and a device that was never tried."""
    options = config.optimization
    images = loaders.training.sampler.images
    each = "each of " if world.size > 1 else ""
    share = f"{options.batch_size} at a time on {each}{count_of(world.size, 'process')}"
    notes = describe_untried(world.device)
    if state.has_local_norms:
        notes += [
            "batch norm: each process's own batch, so the run depends on their number (--batch-norm local)"
        ]
    if options.compile and world.size > 1 and world.device.type == "cuda":
        notes += [
            "warning: --compile on several GPUs: batch norm over GPUs interrupts the compiled "
            "code at each layer, which was never tried; what does not compile runs as it is"
        ]
    if state.epoch >= options.epochs:
        notes += [f"all epochs are done; for more, use --epochs above {state.epoch}"]
    return [
        f"network: {spec.architecture}; {sum(p.numel() for p in state.network.parameters()):,} parameters",
        f"run: {config.address}; {count_of(options.epochs, 'epoch')} of "
        f"{count_of(state.steps_per_epoch, 'step')} of {count_of(images, 'image')} ({share}), "
        f"{world.device.type}, {str(spec.precision.dtype).removeprefix('torch.')}, "
        f"{count_of(count_workers(world, config.launch.workers), 'reading process')} each",
        *notes,
    ]
