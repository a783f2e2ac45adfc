"""The time that a run on a CPU will take, and ways to shorten it: said once, after its first steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.distributed.world import World
from unet_ddp.runs.core_wait import CoreWait
from unet_ddp.runs.writers import describe_time
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import forward

_TIMED = 3  # steps of an epoch; the first is slower
_LONG = 1800  # seconds of a run, from which on ways to shorten it are named
_SMALLEST = 64  # pixels of a side


class Outlook:
    """Estimates the rest of a run by its first steps, but not where --budget plans it; silent on a GPU."""

    def __init__(
        self,
        config: TrainConfig,
        data: PreparedData,
        state: TrainState,
        world: World,
        log: Callable[[str], None],
    ) -> None:
        self._config, self._data, self._state, self._log = config, data, state, log
        is_cpu = world.device.type == "cpu"
        self._is_open = is_cpu and "budget" not in config.given
        self._core_wait = CoreWait(log) if is_cpu else None
        self._first = 0.0

    def step(self, steps: int, now: float, *, wait: float) -> None:
        """Note that an epoch has done `steps` at this time, a share `wait` of which it waited for data."""
        if self._core_wait is not None:
            self._core_wait.step(now)
        if steps == 1:
            self._first = now
        schedule, timed = self._state.schedule, min(_TIMED, self._state.steps_per_epoch)
        if not self._is_open or steps < max(timed, 2):  # nothing is timed in epochs of one step
            return
        self._is_open = False
        one, done = (now - self._first) / (timed - 1), self._state.done
        left = one * (schedule.end - done)
        if left > _LONG:
            ways = [
                *self._list_scales(one * schedule.end, wait),
                "--budget 30m trains as many epochs as fit",
            ]
            self._log(
                f"about {describe_time(left)} to go, without validation; in a new run, {', and '.join(ways)}"
            )

    def _list_scales(self, whole: float, wait: float) -> list[str]:
        """Return how long the `whole` run would take at a smaller scale, measured; nothing if that has no effect."""
        size, options = self._data.crop_size or self._data.one_size, self._config.data
        if size is None or options.crop_size is not None or self._state.has_own_buffers:
            return []  # crops of a given size stay as large; a network of the user's may count its calls
        factor = 0.5 if whole / 4 <= _LONG else 0.25
        height, width = (round(side * factor) for side in size)
        if min(height, width) < _SMALLEST:
            return []
        share = self._time(height, width) / self._time(*size)
        seconds = whole * (wait + (1 - wait) * share)  # reading images may take as long as before
        return [
            f"--scale {options.scale * factor:g} takes about {describe_time(seconds)} (measured)"
        ]

    @torch.no_grad()  # what a network keeps is used in training, too
    def _time(self, height: int, width: int) -> float:
        """Return the seconds in which the network computes an image of this size; it stays as it was."""
        state = self._state
        modes = {module: module.training for module in state.network.modules()}
        image = torch.zeros(1, height, width, state.preprocess.channels, dtype=torch.uint8)
        state.network.eval()
        for _ in range(2):  # the first time is slower
            began = time.perf_counter()
            with state.precision.autocast():
                forward(state.network, state.preprocess, image)
        for module, mode in modes.items():
            module.training = mode
        return time.perf_counter() - began
