"""A run as train.py builds it, for benchmarks to take epochs of."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from benchmarks.images import make_images
from unet_ddp.cli import parse_train
from unet_ddp.commands import train
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.commands.train_parts import choose_parts, open_run
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.loaders import Loaders
from unet_ddp.distributed.device import cudnn_autotuning
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.metrics.scores import Validation
from unet_ddp.runs.build import build_metadata, choose_model
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.plan import RunBuilder
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.tracking import Tracker
from unet_ddp.training.state import TrainState


class Session(NamedTuple):
    """All that train.py has when its first epoch begins."""

    config: TrainConfig
    world: World
    data: PreparedData
    state: TrainState
    loaders: Loaders
    folder: RunFolder
    tracker: Tracker

    def train_one_epoch(self, stop: Any = None) -> None:
        """Train one epoch as train.py does, without validation and the save after it."""
        signals = StopSignal(self.world) if stop is None else nullcontext(stop)
        with cudnn_autotuning(), signals as stop:
            train.train_one_epoch(self._run(stop))
        self.synchronise()
        self.state.finish_epoch(None)

    def validate(self) -> Validation | None:
        """Validate as train.py does."""
        with StopSignal(self.world) as stop:
            return train.validate(self._run(stop))[0]

    def _run(self, stop: StopSignal) -> train.Run:
        parts = self.state, self.loaders, self.folder, self.tracker, stop, self.world
        return train.Run(self.config, self.data, StartPoint(), *parts, tuner=None, limit=None)

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()


@contextmanager
def new_session(
    images: int,
    flags: Sequence[str],
    *,
    grouped: bool = False,
    size: tuple[int, int] = (240, 160),
) -> Iterator[Session]:
    """Yield a new run on `images` drawn images, in a new folder and with an empty cache.

    Args:
        images: number of pairs.
        flags: settings of train.py.
        grouped: in a process group of one, so that agreeing on signals is a collective.
        size: (width, height) of the images.
    """
    place = dict.fromkeys(("RANK", "LOCAL_RANK"), "0")
    place |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1")
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    whole = mock.patch.dict(os.environ, place if grouped else {})
    with whole, tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        data_flags = make_images(Path(home) / "data", images, size)
        with open_session([*data_flags, "--checkpoints", f"{home}/run", *flags]) as session:
            yield session


@contextmanager
def open_session(flags: Sequence[str]) -> Iterator[Session]:
    """Yield a new run with these settings of train.py, `--checkpoints` among them."""
    config = parse_train(["--epochs", "9999", *flags])
    world = join("auto", 60)
    torch.set_float32_matmul_precision("high")
    with RunFolder(config, world, print) as folder:
        resumed = open_run(folder, config)
        config = resumed.resolve_settings(config, world)
        data, parts = resumed.prepare_data(config, DATA_PARTS), choose_parts(config)
        spec = choose_model(config, data, resumed, world.device, parts=parts)
        state, loaders = RunBuilder(spec, data, resumed, world, 0.0, parts).build(config)
        folder.claim(config, resumed, build_metadata(config, spec, data, loaders, world))
        stop = StopSignal(world)
        run = config, data, state, loaders, world, stop
        with loaders, Tracker(*run, parts.log_uncompiled, resumed) as tracker:
            yield Session(config, world, data, state, loaders, folder, tracker)
    leave(world)
