"""The device of a process, and the cores and memory it may use; no process group is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock

import torch

from unet_ddp.errors import UserError, count_of

DEVICES = ("auto", "cpu", "cuda")
_UNKNOWN = 4 << 30  # bytes, where the system does not say
CPUS, CPU_INFO = Path("/sys/devices/system/cpu"), Path("/proc/cpuinfo")
CGROUP, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "unable to find an engine",  # cuDNN's, where none fits into what is left
    "'out of memory'",  # NCCL's
    "Failed to allocate memory",  # onnxruntime's
)


def pick_device(device: str, local_rank: int = 0, local_size: int = 1) -> torch.device:
    """Return the device of one of `local_size` processes on this machine.

    For a CPU, torch is left no more threads than this process has cores, unless OMP_NUM_THREADS is set.

    Args:
        device: auto, cpu or cuda.
        local_rank: the process's number on this machine.
        local_size: the number of processes on this machine.

    Raises:
        UserError: there is no such device, no GPU, or there are fewer than processes.
    """
    if device not in DEVICES:
        advice = "; choose a GPU with CUDA_VISIBLE_DEVICES" if "cuda" in str(device) else ""
        raise UserError(f"device {device}: must be one of {', '.join(DEVICES)}{advice}")
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        limit_threads()
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU on this machine; use --device cpu")
    count = torch.cuda.device_count()
    is_torchrun = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # its processes see all the same
    if count == 1 and os.environ.get("CUDA_VISIBLE_DEVICES") and not is_torchrun:
        return torch.device("cuda", 0)  # srun and mpirun can show each process its own alone
    if local_size > count:  # every process finds this, so that the main one can say it
        raise UserError(
            f"{local_size} processes, but this machine has {count_of(count, 'GPU')}: use "
            f"--nproc_per_node={count}, or --device cpu"
        )
    return torch.device("cuda", local_rank)


def check_device(device: str | torch.device) -> torch.device:
    """Return the device that Python names, as "cuda" or as torch's object.

    Raises:
        UserError: as of `pick_device`; or there is no GPU of that number.
    """
    if not isinstance(device, torch.device):
        return pick_device(device)
    if device.type == "cuda":
        pick_device("cuda")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise UserError(f"device {device}: this machine has {count_of(count, 'GPU')}, from 0")
    return device


def is_faster_in_bfloat16() -> bool:
    """Return whether this CPU computes faster in bfloat16: a U-Net's step then takes half to two thirds.

    An AMD CPU needs AVX512-BF16 for it, an Intel CPU AMX as well: on a virtual Xeon without AMX, a step
    took 1.2 to 1.5 times as long as in float32. So it does where the user keeps oneDNN from them.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not torch.cpu._is_avx512_bf16_supported():
        return False
    with suppress(OSError):  # Windows has no such file
        if "GenuineIntel" in CPU_INFO.read_text():
            return torch.cpu._is_amx_tile_supported()
    return True


def predicts_in_bfloat16(precision: str = "auto") -> bool:
    """Return whether this CPU predicts in bfloat16 with a network that was trained in it.

    Args:
        precision: auto or float32.

    Raises:
        UserError: it is neither.
    """
    if precision not in ("auto", "float32"):
        raise UserError(f"precision {precision}: prediction has auto and float32")
    return precision == "auto" and is_faster_in_bfloat16()


def describe_untried(device: torch.device) -> list[str]:
    """Return a line if `device`, or a GPU that is left unused, was never tried with this program."""
    lines = []
    if device.type == "cuda":
        if getattr(torch.version, "hip", None):
            lines.append("device: an AMD GPU through ROCm, which was never tried")
        return lines
    for name, module in (("MPS", torch.backends.mps), ("XPU", torch.xpu)):
        if module.is_available():
            lines.append(f"device: the CPU; this machine's {name} is not used, it was never tried")
    return lines


def usable_cores(*, logical: bool = False) -> int:
    """Return the number of cores that this process may use, by its affinity and its container's quota.

    Two threads of one core count once: a network gains nothing from the second. `logical`: twice,
    for work that waits, as reading files does.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    processors = os.sched_getaffinity(0)
    most = len(processors) if logical else len(set(map(_core_of, processors)))
    for folder in _find_cgroups():
        with suppress(OSError, ValueError):  # ValueError: "max", no limit
            quota, period = map(int, (folder / "cpu.max").read_text(encoding="ascii").split())
            most = min(most, -(-quota // period))
    return max(1, most)


def limit_threads() -> None:
    """Take threads from torch that have no core: it does not know a container's quota.

    They would use up the quota by waiting for each other, and all would stand still for the rest of its period.
    """
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > usable_cores():
        torch.set_num_threads(usable_cores())


def _core_of(processor: int) -> str:
    """Return the processors of the same core, or this one where the system does not say."""
    with suppress(OSError):
        return (CPUS / f"cpu{processor}/topology/thread_siblings_list").read_text(encoding="ascii")
    return str(processor)


def _find_cgroups() -> list[Path]:
    """Return this container's or batch job's control groups (of version 2), the own one first."""
    text = ""
    with suppress(OSError):
        text = OWN_CGROUPS.read_text(encoding="utf-8", errors="replace")
    own = CGROUP / text.partition("0::")[2].split("\n")[0].strip("/")
    return [own, *own.parents]


def start_thread(name: str) -> ThreadPoolExecutor:
    """Start a thread that computes on one core, and keep the cores of all others.

    With more OpenMP threads than cores, libgomp's threads sleep between kernels for the rest of the run, in training
    too, and waking them costs more than small kernels.
    """

    def compute_on_one_core() -> None:
        torch.get_num_threads()  # else torch's first kernel here takes the number of all threads
        torch.set_num_threads(1)

    before = torch.get_num_threads()
    thread = ThreadPoolExecutor(1, name, initializer=compute_on_one_core)
    thread.submit(int).result()
    torch.set_num_threads(before)  # it is the number of all threads to come, too
    return thread


def free_memory(device: torch.device) -> int:
    """Return the bytes that `device` can still give; on a CPU the container's limit counts."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    left = [max(0, limit - used) for limit, used in _read_limits()]
    return min([_read_meminfo("MemAvailable"), *left])


def total_memory(device: torch.device) -> int:
    """Return the bytes that `device` has, used or not; on a CPU the container's limit counts."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return min([_read_meminfo("MemTotal"), *(limit for limit, _ in _read_limits())])


def is_out_of_memory(error: Exception) -> bool:
    """Return whether torch, or a library it calls, could not allocate memory."""
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(part in said for part in _OUT_OF_MEMORY)


def _read_meminfo(name: str) -> int:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(text.partition(f"{name}:")[2].split()[0]) << 10
    except (OSError, IndexError, ValueError):
        return _UNKNOWN


def _read_limits() -> list[tuple[int, int]]:
    """Return limit and use, in bytes, of the control groups with a limit."""
    found = []
    for folder in _find_cgroups():
        with suppress(OSError, ValueError):  # ValueError: "max", no limit
            limit = int((folder / "memory.max").read_text(encoding="ascii"))
            used = int((folder / "memory.current").read_text(encoding="ascii"))
            found.append((limit, used))
            text = (folder / "memory.stat").read_text(encoding="ascii")
            spare = int(text.partition("\ninactive_file ")[2].split("\n")[0])  # files': given back
            found[-1] = (limit, used - spare)
    return found


class Turns(AbstractContextManager[None]):
    """A lock of the threads that use a device, where it is a GPU; a copy in another process has another lock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = Lock() if device.type == "cuda" else nullcontext()

    def __reduce__(self) -> tuple[type[Turns], tuple[torch.device]]:
        return Turns, (self._device,)

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)


@contextmanager
def tf32_products() -> Iterator[None]:
    """Let a GPU that has TF32 multiply float32 matrices in it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def cudnn_autotuning() -> Iterator[None]:
    """Let cuDNN choose convolutions by trying them, unless the run is deterministic.

    For training alone, whose images have one size: each other size would be tried again, and an
    image's scores would depend on what was the fastest on the rank that has it.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
