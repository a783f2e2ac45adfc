"""A run before its first step: built for planners, which find settings on it, and for the run itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from unet_ddp.config import PRESETS, TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.loaders import Loaders, build_loaders
from unet_ddp.distributed.out_of_memory import explain_out_of_memory
from unet_ddp.distributed.world import World
from unet_ddp.plugins import find
from unet_ddp.runs.build import ModelSpec, build_state, new_schedule
from unet_ddp.runs.own_augmentation import try_augmentation
from unet_ddp.runs.own_flags import check_typed
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.run_parts import RunParts
from unet_ddp.settings import called, with_values
from unet_ddp.training.state import TrainState


@dataclass
class RunBuilder:
    """Builds the state of a run once, and its loaders for each planner and for the run."""

    spec: ModelSpec
    data: PreparedData
    start: StartPoint
    """Takes the planners' notes and files."""
    world: World
    began: float
    """The time.monotonic() of the program's start."""
    parts: RunParts
    state: TrainState | None = None
    """Of the run, once a planner or the run has needed it."""

    def build(self, config: TrainConfig) -> tuple[TrainState, Loaders]:
        """Return the run's state, and new loaders with new reading processes.

        A planner leaves the state as it was.
        """
        pixels = self.spec.preprocessing.format
        if self.state is None and config.data.augmentation not in PRESETS:
            self.world.on_main(partial(try_augmentation, config, self.data, pixels))
        open_cache = self.parts.open_cache
        loaders = build_loaders(
            config, self.data, image_format=pixels, world=self.world, open_cache=open_cache
        )
        if self.state is not None:
            self.state.schedule = new_schedule(config.optimization, loaders.training.sampler.steps)
            return self.state, loaders
        with explain_out_of_memory(config, self.world, "building"):
            self.state = build_state(
                config, self.spec, self.data, self.start, loaders, self.world, self.parts
            )
        parts = self.spec.architecture, self.state.network, self.spec.loss
        self.world.on_main(partial(check_typed, config, *parts))
        return self.state, loaders


def run_planners(config: TrainConfig, builder: RunBuilder) -> TrainConfig:
    """Return `config` with what its planners find; later no setting changes.

    They run in the order of their settings in TrainConfig: a batch size is known before a budget is planned.

    Raises:
        UserError: nothing fits, or the losses show no rate.
        RunError: not one image fits into the memory.
    """
    for name in called(config, "planners"):
        config = with_values(config, find("planners", name)(config, builder))
    return config
