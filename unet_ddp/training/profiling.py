"""--profile: where the time of some steps goes, as a trace and on one screen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

_SKIPPED, _STEPS = 3, 10
# What a step consists of: the regions that the engine and the loader's clock mark.
_PARTS = ("data wait", "host to device", "forward", "loss", "backward", "step")


class Profile:
    """Looks at some steps of a run, on its main process.

    Args:
        folder: where profile.json goes, for chrome://tracing or ui.perfetto.dev.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.path = folder / "profile.json"
        self.device = device
        self._lines: list[str] = []
        # Its library tells of each start, and of a missing GPU, on stderr.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler: Any = profile(
            activities=activities,
            schedule=schedule(wait=_SKIPPED - 1, warmup=1, active=_STEPS, repeat=1),
            on_trace_ready=self._finish,
        )

        self._profiler.start()
        self._is_open = True

    def step(self) -> list[str]:
        """A step was done; after the last one that is looked at, the summary's lines."""
        if self._is_open:
            self._profiler.step()
        return self._take()

    def close(self) -> list[str]:
        """The run is over; the summary's lines, if it is over before all steps were looked at."""
        if self._is_open:
            self._is_open = False
            self._profiler.stop()
        return self._take()

    def _take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def _finish(self, profiler: Any) -> None:
        """Make the summary, and write the trace."""
        steps, seconds = self._seconds(profiler.key_averages())
        whole, within = seconds.pop("whole"), seconds.pop("all-reduce")
        seconds["other"] = whole - sum(seconds.values())
        lines = [f"profile of {steps} steps, {1000 * whole / max(1, steps):.1f} ms each:"]
        if self.device.type == "cuda":
            lines.append(
                "  (of the host, which runs ahead of the GPU; the GPU's own are in the trace)"
            )
        for name, took in (*seconds.items(), ("all-reduce", within)):
            lines.append(
                f"  {name:<16}{1000 * took / max(1, steps):>9.2f} ms {took / max(whole, 1e-9):>7.1%}"
            )
        lines[-1] += "  (within forward, loss and backward)"
        try:
            profiler.export_chrome_trace(str(self.path))
            lines.append(f"trace: {self.path}; open it in ui.perfetto.dev")
        except (OSError, RuntimeError) as error:
            lines.append(f"WARNING: {self.path} can't be written: {error}")
        self._lines = lines

    def _seconds(self, events: Any) -> tuple[int, dict[str, float]]:
        """Number of steps; seconds of each part, of collectives, and of all steps as a whole."""
        steps, found = 0, dict.fromkeys((*_PARTS, "all-reduce", "whole"), 0.0)
        for event in events:
            if event.device_type != torch.autograd.DeviceType.CPU:
                continue  # the same region once more, as the GPU saw it
            if event.key.startswith("ProfilerStep"):
                steps += event.count
                found["whole"] += event.cpu_time_total / 1e6
            elif event.key in found:
                found[event.key] += event.cpu_time_total / 1e6
        return steps, found
