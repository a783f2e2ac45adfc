"""--profile: a table of a step's parts, and a trace."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import record_function

from tests.tiny import make_batch, make_state
from unet_ddp.extras.diagnose.profiling import StepProfile, summarise
from unet_ddp.runs.writers import RunInfo
from unet_ddp.training import prefetch, step
from unet_ddp.training.prefetch import Prefetcher

CPU = torch.device("cpu")


def event(key: str, microseconds: float, count: int = 1, device: Any = DeviceType.CPU) -> Any:
    return SimpleNamespace(key=key, cpu_time_total=microseconds, count=count, device_type=device)


def run_info(folder: Path, lines: list[str]) -> RunInfo:
    return RunInfo(folder, None, {}, make_state(), None, lines.append)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def profiler(tmp_path: Path, lines: list[str]) -> Any:
    return StepProfile(run_info(tmp_path, lines))


def test_the_parts_of_a_step_add_up() -> None:
    lines = summarise(
        [
            event("ProfilerStep#4", 60_000, 6),
            event("ProfilerStep#5", 40_000, 4),
            event("forward", 30_000, 10),
            event("backward", 50_000, 10),
            event("all-reduce", 7_000, 20),
            event("forward", 99_000, 10, DeviceType.CUDA),  # the same, as the GPU saw it
            event("aten::conv2d", 20_000, 30),
        ],
        CPU,
    )
    assert lines[0] == "profile of 10 steps, 10.0 ms each:"
    parts = {line[2:18].strip(): line[18:].split() for line in lines[1:]}
    assert {name: (part[0], part[2]) for name, part in parts.items()} == {
        "data wait": ("0.00", "0.0%"),
        "host to device": ("0.00", "0.0%"),
        "forward": ("3.00", "30.0%"),
        "loss": ("0.00", "0.0%"),
        "backward": ("5.00", "50.0%"),
        "step": ("0.00", "0.0%"),
        "other": ("2.00", "20.0%"),
        "all-reduce": ("0.70", "7.0%"),  # in the others already
    }
    assert lines[-1].endswith("(part of forward, loss and backward)")


def test_no_step_is_no_fault_and_a_gpu_s_time_is_not_the_host_s() -> None:
    lines = summarise([], torch.device("cuda"))
    assert lines[0] == "profile of 0 steps, 0.0 ms each:"
    assert "which runs ahead of the GPU" in lines[1]


def take_steps(profiler: Any, count: int) -> None:
    for _ in range(count):
        with record_function("forward"):
            torch.ones(2) + 1
        profiler.step(None, 0)


def test_ten_steps_are_measured_after_three(
    profiler: Any, lines: list[str], tmp_path: Path
) -> None:
    take_steps(profiler, 12)
    assert lines == []
    take_steps(profiler, 1)
    assert lines[0].startswith("profile of 10 steps, ")
    assert "(of the host" not in "".join(lines)
    assert lines[-1] == f"trace: {tmp_path / 'profile.json'}; open it in ui.perfetto.dev"
    trace = json.loads((tmp_path / "profile.json").read_text())
    assert sum(item.get("name") == "forward" for item in trace["traceEvents"]) == 10
    count = len(lines)
    take_steps(profiler, 2)
    profiler.close()
    assert len(lines) == count


def test_a_run_that_ends_early_shows_what_was_measured(profiler: Any, lines: list[str]) -> None:
    take_steps(profiler, 5)
    profiler.close()
    assert lines[0].startswith("profile of 2 steps, ")  # without the one begun


def test_a_run_of_no_measured_step_says_so(profiler: Any, lines: list[str], tmp_path: Path) -> None:
    take_steps(profiler, 3)
    profiler.close()
    assert lines == ["profile: none, as the run had 3 steps; the first 3 are not measured"]
    assert not (tmp_path / "profile.json").exists()


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_trace_that_can_t_be_written_is_a_warning(
    profiler: Any, tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    def fail(*_: object) -> None:
        raise error("disk full")

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", fail)
    path = tmp_path / "profile.json"
    take_steps(profiler, 4)
    profiler.close()
    assert lines[-1] == f"warning: {path}: can't be written: disk full"


def test_the_parts_are_the_regions_that_a_step_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: set[str] = set()

    def mark(name: str) -> AbstractContextManager[None]:
        marked.add(name)
        return nullcontext()

    for module in (step, prefetch):
        monkeypatch.setattr(module, "record_function", mark)
    batches = Prefetcher([make_batch(0)], ahead=1, device=CPU, on_error=[].append)
    list(step.train_steps(make_state(steps=1), batches))
    shown = {line[2:18].strip() for line in summarise([], CPU)[1:]}
    assert marked == shown - {"other", "all-reduce"}
