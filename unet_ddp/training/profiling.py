"""``--profile``: where the time of ten steps goes, as a trace and on one screen."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from unet_ddp.errors import UserError
from unet_ddp.files import replacing

_SKIPPED, _STEPS = 3, 10
# The parts of a step: the regions that the step and the prefetcher mark.
_PARTS = ("data wait", "host to device", "forward", "loss", "backward", "step")


class Profile:
    """Measures some steps of a run on its main process.

    profile.json in its folder is for chrome://tracing or ui.perfetto.dev. `writing` yields where to
    write that file.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        writing: Callable[[Path], AbstractContextManager[Path]] = nullcontext,
    ) -> None:
        self.path = folder / "profile.json"
        self.device = device
        self._writing = writing
        self._lines: list[str] = []
        # The profiler's library logs each start, and a missing GPU, on stderr.
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
        """Count a step; return the summary's lines after the last one that is measured."""
        if self._is_open:
            self._profiler.step()
        return self._take_lines()

    def close(self) -> list[str]:
        """End the profile; return the summary's lines if the run ends before all steps are done."""
        if self._is_open:
            self._is_open = False
            self._profiler.stop()
        return self._take_lines()

    def _take_lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def _finish(self, profiler: Any) -> None:
        """Compute the summary and write the trace."""
        steps, seconds = _sum_seconds(profiler.key_averages())
        total, all_reduce = seconds.pop("total"), seconds.pop("all-reduce")
        seconds["other"] = total - sum(seconds.values())
        lines = [f"profile of {steps} steps, {1000 * total / max(1, steps):.1f} ms each:"]
        if self.device.type == "cuda":
            lines.append(
                "  (of the host, which runs ahead of the GPU; see the trace for the GPU's)"
            )
        for name, part in (*seconds.items(), ("all-reduce", all_reduce)):
            milliseconds, share = 1000 * part / max(1, steps), part / max(total, 1e-9)
            lines.append(f"  {name:<16}{milliseconds:>9.2f} ms {share:>7.1%}")
        lines[-1] += "  (part of forward, loss and backward)"
        try:
            with self._writing(self.path) as path, replacing(path) as temporary:
                profiler.export_chrome_trace(str(temporary))
            lines.append(f"trace: {self.path}; open it in ui.perfetto.dev")
        except (OSError, RuntimeError, UserError) as error:
            lines.append(f"warning: {self.path}: can't be written: {error}")
        self._lines = lines


def _sum_seconds(events: Any) -> tuple[int, dict[str, float]]:
    """Return the number of steps, and the seconds of each part, of collectives, and in total."""
    steps, found = 0, dict.fromkeys((*_PARTS, "all-reduce", "total"), 0.0)
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue  # the same region again, as the GPU saw it
        if event.key.startswith("ProfilerStep"):
            steps += event.count
            found["total"] += event.cpu_time_total / 1e6
        elif event.key in found:
            found[event.key] += event.cpu_time_total / 1e6
    return steps, found
