"""``--profile``: where the time of ten steps goes, as a trace and on one screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
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


def start_profile(
    path: Path,
    device: torch.device,
    log: Callable[[str], None],
    writing: Callable[[Path], AbstractContextManager[Path]] = nullcontext,
) -> profile:
    """Return a started profiler of torch; call its `step()` after each step and `stop()` at the end.

    It measures ten steps after three. Then, or at the end of a shorter run, a summary is logged and the
    trace is written: `path` is for chrome://tracing or ui.perfetto.dev, `writing` yields where to write.
    """

    def finish(profiler: Any) -> None:
        for line in summarise(profiler.key_averages(), device):
            log(line)
        try:
            with writing(path) as place, replacing(place) as temporary:
                profiler.export_chrome_trace(str(temporary))
            log(f"trace: {path}; open it in ui.perfetto.dev")
        except (OSError, RuntimeError, UserError) as error:
            log(f"warning: {path}: can't be written: {error}")

    # The profiler's library logs each start, and a missing GPU, on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    steps = schedule(wait=_SKIPPED - 1, warmup=1, active=_STEPS, repeat=1)
    profiler = profile(activities=activities, schedule=steps, on_trace_ready=finish)
    profiler.start()
    return profiler


def summarise(events: Iterable[Any], device: torch.device) -> list[str]:
    """Return lines with the time of each part of a step, from the profiler's averages."""
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
    for name, part in (*found.items(), ("all-reduce", all_reduce)):
        lines.append(f"  {name:<16}{part / max(1, steps):>9.2f} ms {part / max(total, 1e-6):>7.1%}")
    lines[-1] += "  (part of forward, loss and backward)"
    return lines
