"""``--profile``: where the time of ten steps goes, as a trace and on one screen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import profile, schedule

from unet_ddp.errors import count_of
from unet_ddp.files import replacing
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.writers import RunInfo
from unet_ddp.training.step import StepReport

_SKIPPED, _STEPS = 3, 10
# The parts of a step: the regions that the step and the prefetcher mark.
_PARTS = ("data wait", "host to device", "forward", "loss", "backward", "step")


class StepProfile:
    """Measures ten steps of a run after three; then, or at the end of a shorter run, logs and traces them.

    The trace is for chrome://tracing or ui.perfetto.dev.
    """

    def __init__(self, run: RunInfo) -> None:
        # The profiler's library logs each start, and a missing GPU, on stderr.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._path, self._log = run.folder / "profile.json", run.log
        self._device = run.state.precision.device
        self._steps = 0
        steps = schedule(wait=_SKIPPED - 1, warmup=1, active=_STEPS, repeat=1)
        self._profiler = profile(schedule=steps, on_trace_ready=self._finish)
        self._profiler.start()

    def step(self, report: StepReport, done: int) -> None:
        """Count a step."""
        self._steps += 1
        with (
            warnings.catch_warnings()
        ):  # of torch 2.10 and 2.11, that the first steps are not in the trace
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            self._profiler.step()

    def close(self, ending: Ending | None = None) -> None:
        """Log what was measured, if it is not yet."""
        self._profiler.stop()

    def _finish(self, profiler: Any) -> None:
        if self._steps <= _SKIPPED:
            had = count_of(self._steps, "step")
            self._log(f"profile: none, as the run had {had}; the first {_SKIPPED} are not measured")
            return
        events = sorted(profiler.events(), key=lambda event: event.time_range.start)
        steps = [event for event in events if event.key.startswith("ProfilerStep")]
        for begun in steps[self._steps - _SKIPPED :]:  # the end of a run that has no more steps
            events.remove(begun)
        for line in summarise(events, self._device):
            self._log(line)
        try:
            with replacing(self._path, durable=True) as temporary:
                profiler.export_chrome_trace(str(temporary))
            self._log(f"trace: {self._path}; open it in ui.perfetto.dev")
        except (OSError, RuntimeError) as error:
            self._log(f"warning: {self._path}: can't be written: {error}")


def summarise(events: Iterable[Any], device: torch.device) -> list[str]:
    """Return lines with the time of each part of a step, from the profiler's events."""
    steps, found = 0, dict.fromkeys((*_PARTS, "all-reduce", "total"), 0.0)
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue  # the same region again, as the GPU saw it
        if event.key.startswith("ProfilerStep"):
            steps += event.count
            found["total"] += event.cpu_time_total / 1e3
        elif event.key in found:
            found[event.key] += event.cpu_time_total / 1e3
    total, all_reduce = found.pop("total"), found.pop("all-reduce")
    found["other"] = total - sum(found.values())
    lines = [f"profile of {steps} steps, {total / max(1, steps):.1f} ms each:"]
    if device.type == "cuda":
        lines.append("  (of the host, which runs ahead of the GPU; see the trace for the GPU's)")
    found["all-reduce"] = all_reduce
    for name, part in found.items():
        each, share = part / max(1, steps), part / max(total, 1e-6)
        lines.append(f"  {name:<16}{each:>9.2f} ms {share:>7.1%}")
    lines[-1] += "  (part of forward, loss and backward)"
    return lines
