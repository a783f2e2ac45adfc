"""The device of each process, and the cores and memory that it may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from unet_ddp.distributed import device as device_module
from unet_ddp.distributed.device import (
    check_device,
    describe_untried,
    free_memory,
    pick_device,
    total_memory,
    usable_cores,
)
from unet_ddp.errors import UserError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def see(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(
    ("device", "gpus", "rank", "size", "chosen"),
    [
        ("auto", 0, 0, 1, CPU),
        ("auto", 0, 3, 4, CPU),
        ("auto", 1, 0, 1, torch.device("cuda", 0)),
        ("auto", 4, 2, 3, torch.device("cuda", 2)),
        ("cuda", 2, 1, 2, torch.device("cuda", 1)),
        ("cpu", 2, 1, 8, CPU),
    ],
)
def test_each_process_has_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    gpus: int,
    rank: int,
    size: int,
    chosen: torch.device,
) -> None:
    see(monkeypatch, gpus)
    assert pick_device(device, rank, size) == chosen


def test_a_missing_gpu_is_said_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, 0)
    with pytest.raises(UserError, match=r"^--device cuda: torch sees no GPU .*; use --device cpu$"):
        pick_device("cuda")
    see(monkeypatch, 2)
    for rank in range(4):  # every process finds it
        with pytest.raises(
            UserError,
            match=r"^4 processes, but this machine has 2 GPUs: use --nproc_per_node=2, or --dev",
        ):
            pick_device("auto", rank, 4)


def test_python_s_device_is_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue: torch's own object had torch's error."""
    see(monkeypatch, 0)
    assert check_device(CPU) == check_device("auto") == CPU
    for device in ("cuda", CUDA):
        with pytest.raises(UserError, match=r"^--device cuda: torch sees no GPU"):
            check_device(device)
    see(monkeypatch, 2)
    second = torch.device("cuda", 1)
    assert check_device(second) == second and check_device(CUDA) == CUDA
    with pytest.raises(UserError, match=r"^device cuda:2: this machine has 2 GPUs, from 0$"):
        check_device(torch.device("cuda", 2))


@pytest.mark.parametrize(
    ("variables", "is_taken"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3"}, True),  # srun and mpirun show each process its own
        ({"CUDA_VISIBLE_DEVICES": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}, False),
        ({}, False),
    ],
)
def test_a_process_that_sees_its_own_gpu_alone_takes_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_taken: bool
) -> None:
    """torchrun's processes all see the same one, which NCCL does not share."""
    see(monkeypatch, 1)
    for name in ("CUDA_VISIBLE_DEVICES", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if is_taken:
        assert pick_device("auto", 2, 4) == torch.device("cuda", 0)
        see(monkeypatch, 2)
    with pytest.raises(UserError, match="4 processes, but this machine has"):
        pick_device("auto", 2, 4)


@pytest.mark.parametrize(
    ("device", "hip", "others", "expected"),
    [
        (CPU, None, (), []),
        (CUDA, None, (), []),
        (CUDA, "6.2", (), ["device: an AMD GPU through ROCm, which was never tried"]),
        (CPU, None, ("mps",), ["device: the CPU; this machine's MPS is not used, it was never tried"]),
        (CPU, None, ("xpu",), ["device: the CPU; this machine's XPU is not used, it was never tried"]),
    ],
)  # fmt: skip
def test_devices_that_were_never_tried_are_said(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    hip: str | None,
    others: tuple[str, ...],
    expected: list[str],
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    for name, module in (("mps", torch.backends.mps), ("xpu", torch.xpu)):
        monkeypatch.setattr(module, "is_available", lambda name=name: name in others)
    assert describe_untried(device) == expected


def test_only_usable_cores_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CPUS", "CGROUP", "OWN_CGROUPS"):
        monkeypatch.setattr(device_module, name, tmp_path / name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 7}, raising=False)
    assert usable_cores() == 3
    for processor, siblings in ((0, "0,4"), (1, "1,7"), (4, "0,4"), (7, "1,7")):
        folder = tmp_path / "CPUS" / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert usable_cores() == 2 and usable_cores(logical=True) == 3
    (tmp_path / "OWN_CGROUPS").write_text("1:cpu:/old\n0::/a/b\n")
    (tmp_path / "CGROUP" / "a" / "b").mkdir(parents=True)
    (tmp_path / "CGROUP" / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert usable_cores(logical=True) == 3
    (tmp_path / "CGROUP" / "a" / "cpu.max").write_text("150000 100000\n")
    assert usable_cores() == usable_cores(logical=True) == 2
    (tmp_path / "CGROUP" / "a" / "cpu.max").write_text("50000 100000\n")
    assert usable_cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with 800 of 1000 KiB free; the folder is that of its control group."""
    text, read = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:    800 kB\n", Path.read_text

    def read_text(self: Path, **how: str) -> str:
        return text if self == Path("/proc/meminfo") else read(self, **how)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(device_module, "CGROUP", tmp_path)
    monkeypatch.setattr(device_module, "OWN_CGROUPS", tmp_path / "own")
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "threads", "variable", "expected"),
    [
        ("200000 100000", 64, None, 2),
        ("200000 100000", 64, "16", None),  # the user's own choice
        ("800000 100000", 4, None, None),  # fewer are no harm
        ("max 100000", 3, None, None),
    ],
)
def test_torch_has_no_more_threads_than_a_container_has_cores(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    quota: str,
    threads: int,
    variable: str | None,
    expected: int | None,
) -> None:
    for name in ("CPUS", "CGROUP", "OWN_CGROUPS"):
        monkeypatch.setattr(device_module, name, tmp_path / name)
    (tmp_path / "CGROUP").mkdir()
    (tmp_path / "CGROUP" / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("OMP_NUM_THREADS", variable or "1")
    if variable is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    chosen = list[int]()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    for device in ("cpu", "auto"):
        assert pick_device(device).type == "cpu"
    assert chosen == ([] if expected is None else [expected] * 2)


@pytest.mark.parametrize(
    ("limit", "used", "free", "total"),
    [
        (None, None, 800, 1000),
        ("max\n", "300", 800, 1000),  # no limit
        (500, 200, 300, 500),
        (500, 600, 0, 500),
        (950, 100, 800, 950),
        (5000, 100, 800, 1000),
    ],
)
def test_a_container_s_limit_counts(
    machine: Path, limit: int | str | None, used: int | str | None, free: int, total: int
) -> None:
    """Numbers in KiB."""
    for name, value in (("memory.max", limit), ("memory.current", used)):
        if value is not None:
            text = value if isinstance(value, str) else str(value << 10)
            (machine / name).write_text(text)
    assert free_memory(CPU) == free << 10
    assert total_memory(CPU) == total << 10


def test_a_batch_job_s_limit_counts(machine: Path) -> None:
    """The limit of a job around this process's own group."""
    (machine / "own").write_text("0::/slurm/job_1/step_0\n")
    job = machine / "slurm" / "job_1"
    job.mkdir(parents=True)
    (job / "memory.max").write_text(str(500 << 10))
    (job / "memory.current").write_text(str(200 << 10))
    assert free_memory(CPU) == 300 << 10
    cached = f"inactive_file {50 << 10}"  # of files
    (job / "memory.stat").write_text(f"anon 7\n{cached}\nslab 9\n")
    assert free_memory(CPU) == 350 << 10
    assert total_memory(CPU) == 500 << 10


@pytest.mark.parametrize("text", [None, "", "MemTotal:\n", "MemTotal: many kB\nMemAvailable: ?\n"])
def test_memory_that_the_system_does_not_tell_is_4_gib(
    monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    def read_text(self: Path, **how: str) -> str:
        if text is None or self != Path("/proc/meminfo"):
            raise FileNotFoundError(self)
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
    assert free_memory(CPU) == total_memory(CPU) == 4 * 2**30


def test_a_gpu_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 50))
    assert (free_memory(CUDA), total_memory(CUDA)) == (30, 50)
