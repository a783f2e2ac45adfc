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
from unet_ddp.training import prefetch, profiling, step
from unet_ddp.training.prefetch import Prefetcher
from unet_ddp.training.profiling import Profile


def event(key: str, microseconds: float, count: int = 1, device: Any = DeviceType.CPU) -> Any:
    return SimpleNamespace(key=key, cpu_time_total=microseconds, count=count, device_type=device)


def finish(profile: Profile, events: list[Any], export: Any = lambda path: None) -> list[str]:
    """The lines after these measurements."""
    profile._finish(SimpleNamespace(key_averages=lambda: events, export_chrome_trace=export))
    return profile._take_lines()


@pytest.fixture
def profile(tmp_path: Path) -> Any:
    profile = Profile(tmp_path, torch.device("cpu"))
    yield profile
    profile.close()


def test_the_trace_is_not_written_through_a_link(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "profile.json").symlink_to(tmp_path / "victim")
    finish(profile, [], lambda path: Path(path).write_text("{}"))
    assert (tmp_path / "victim").read_text() == "untouched"
    assert profile.path.read_text() == "{}" and not profile.path.is_symlink()


def test_the_parts_of_a_step_add_up(profile: Profile) -> None:
    lines = finish(
        profile,
        [
            event("ProfilerStep#4", 60_000, 6),
            event("ProfilerStep#5", 40_000, 4),
            event("forward", 30_000, 10),
            event("backward", 50_000, 10),
            event("all-reduce", 7_000, 20),
            event("forward", 99_000, 10, DeviceType.CUDA),  # the same, as the GPU saw it
            event("aten::conv2d", 20_000, 30),
        ],
    )
    assert lines[0] == "profile of 10 steps, 10.0 ms each:"
    parts = {line[2:18].strip(): line[18:].split() for line in lines[1:-1]}
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
    assert lines[-2].endswith("(part of forward, loss and backward)")
    events = [event("ProfilerStep#4", 2e6, 3), event("all-reduce", 5e5)]
    steps, seconds = profiling._sum_seconds(events)
    assert (steps, seconds["total"], seconds["all-reduce"]) == (3, 2.0, 0.5)
    assert lines[-1] == f"trace: {profile.path}; open it in ui.perfetto.dev"


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_a_trace_that_can_t_be_written_is_a_warning(profile: Profile, error: Any) -> None:
    def fail(path: str) -> None:
        raise error("disk full")

    lines = finish(profile, [], fail)
    assert lines[0] == "profile of 0 steps, 0.0 ms each:"
    assert lines[-1] == f"warning: {profile.path}: can't be written: disk full"


def test_ten_steps_are_measured_after_three(profile: Profile, tmp_path: Path) -> None:
    outcomes = []
    for _ in range(15):
        with record_function("forward"):
            torch.ones(2) + 1
        outcomes.append(profile.step())
    assert [bool(lines) for lines in outcomes] == [False] * 12 + [True] + [False] * 2
    assert outcomes[12][0].startswith("profile of 10 steps, ")
    assert "(of the host" not in "".join(outcomes[12])
    trace = json.loads((tmp_path / "profile.json").read_text())
    assert sum(item.get("name") == "forward" for item in trace["traceEvents"]) == 10
    assert profile.close() == []


def test_a_run_that_ends_early_shows_what_was_measured(profile: Profile) -> None:
    for _ in range(5):
        assert profile.step() == []
    assert profile.close()[0].startswith("profile of 3 steps, ")  # with the one begun
    assert profile.close() == []
    assert profile.step() == []


def test_the_parts_are_the_regions_that_a_step_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: set[str] = set()

    def mark(name: str) -> AbstractContextManager[None]:
        marked.add(name)
        return nullcontext()

    for module in (step, prefetch):
        monkeypatch.setattr(module, "record_function", mark)
    device = torch.device("cpu")
    batches = Prefetcher([make_batch(0)], ahead=1, device=device, on_error=[].append)
    list(step.train_steps(make_state(steps=1), batches))
    assert marked == set(profiling._PARTS)


def test_a_gpu_s_time_is_not_the_host_s(tmp_path: Path) -> None:
    profile = Profile(tmp_path, torch.device("cpu"))
    profile.device = torch.device("cuda")
    assert "which runs ahead of the GPU" in finish(profile, [])[1]
    profile.close()
