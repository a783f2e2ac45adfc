"""How large a batch the memory holds, and what to do where it does not suffice."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.world import World, alone
from unet_ddp.errors import RunError
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.network.precision import Precision
from unet_ddp.training.cost import counting_kept
from unet_ddp.training.losses import DiceCrossEntropy
from unet_ddp.training.optimizer import AdamW
from unet_ddp.training.step import TrainState, gradients

_MARGIN = 0.05  # of a GPU: DDP's buckets, synchronised batch norm, nodata_mask between tensors
# What a CPU step takes at its peak, over what its backward pass keeps of the images: at most 1.2
# when tried, 3.7 where levels are computed a second time.
_PEAK, _PEAK_CHECKPOINTING = 1.5, 4.0
_FULL = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Trial:
    """One process's try-out of batches, with a network of the run's kind and not the run's own.

    No collective is in it: a rank may run out of memory where another does not.
    """

    architecture: Architecture
    preprocessing: Preprocessing
    loss: DiceCrossEntropy
    precision: Precision
    size: tuple[int, int]
    """(height, width) of the images."""
    checkpointing: bool = False
    average: bool = False
    """Whether a moving average of the weights is kept."""

    def largest(self, candidates: Sequence[int], processes: int) -> tuple[int, str]:
        """The first of `candidates` that fits, or 0 and why not even the last one does.

        Memory is given back; torch's random generators are as they were.

        Args:
            processes: that share this machine's memory, where the device is its CPU.
        """
        reason, device = "", self.precision.device
        with alone(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            for count in candidates:
                try:
                    if self._is_room(count, processes):
                        self._step(count)
                        return count, ""
                    reason = f"{count} image(s) at once need more memory than is available"
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    reason = _wanted(error)
                finally:  # the error is gone, and with it the frames that hold the tensors
                    _give_back()
        return 0, reason

    def _step(self, count: int, *, batches: int = 2) -> None:
        """A step of the optimizer in `batches` of `count` images, all but the update itself."""
        device = self.precision.device
        network = build_network(self.architecture, checkpointing=self.checkpointing).to(device)
        network.train()
        # The optimizer's two moments, and the average; the fused update needs no more.
        copies = 3 if self.average else 2
        held = [torch.zeros_like(p) for p in network.parameters() for _ in range(copies)]
        if device.type == "cuda":
            spare = int(_MARGIN * torch.cuda.get_device_properties(device).total_memory)
            held.append(torch.empty(spare, dtype=torch.uint8, device=device))
        optimizer = AdamW(network.parameters(), fused=True)
        state = TrainState(network, network, optimizer, self.precision)
        batch = self._batch(count)
        gradients(state, [batch] * batches, self.loss, self.preprocessing, count=batches)

    def _batch(self, count: int) -> Sample:
        height, width = self.size
        images = torch.zeros(count, height, width, self.preprocessing.channels, dtype=torch.uint8)
        return Sample(images, images[..., 0].clone(), torch.arange(count))

    def _is_room(self, count: int, processes: int) -> bool:
        """Whether a CPU has the memory: its system would not refuse, but kill."""
        if self.precision.device.type != "cpu" or count == 1:
            return True
        free = available_memory()
        peak = _PEAK_CHECKPOINTING if self.checkpointing else _PEAK
        return free is None or count * self._kept_by_one * peak <= free / processes

    @cached_property
    def _kept_by_one(self) -> int:
        """Bytes that a step keeps of one image for its backward pass."""
        with counting_kept() as kept:
            self._step(1, batches=1)
        return sum(kept.values())


def find_batch(trial: Trial, world: World, share: int, *, most: int | None = None) -> int:
    """The largest batch that fits on every rank, the same on all, that makes up `share` images.

    Args:
        share: images per process in one step of the optimizer.
        most: the largest to try; `share` when absent.

    Raises:
        RunError: not one image fits, on a rank.
    """
    candidates = [n for n in range(most or share, 0, -1) if share % n == 0]
    found = world.gather(trial.largest(candidates, world.local_size))
    smallest, reason = min(found)
    if smallest == 0:
        rank = found.index((smallest, reason))
        raise RunError(
            f"--batch-size auto: not one image fits into the memory of rank {rank} of {world.size}"
            f": {reason}; give --crop-size, a smaller --scale or --width, or --checkpointing"
        )
    return smallest


@contextmanager
def explain_out_of_memory(config: TrainConfig, world: World, doing: str) -> Iterator[None]:
    """Within it, running out of memory is told with what would help.

    Args:
        doing: what is being done: building, training or scoring.

    Raises:
        RunError: in place of torch's error.
    """
    try:
        yield
        return
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        wanted = _wanted(error)
    which = f"rank {world.rank} of {world.size}: " if world.size > 1 else ""
    what = "GPU" if world.device.type == "cuda" else "machine"
    raise RunError(
        f"{which}the {what} is out of memory in {doing}: {wanted}; {_remedy(config, world, doing)}"
    )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch, or a library under it, could not have the memory that it wanted."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _FULL)


def _wanted(error: RuntimeError) -> str:
    """What torch says of amounts, as far as it does."""
    text = " ".join(str(error).split())
    wanted = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
    limits = re.search(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", text)
    own = re.search(r"this process has ([\d.]+ \w+) memory in use", text)
    if wanted is None or limits is None:
        by_cpu = re.search(r"tried to allocate (\d+) bytes", text)
        return f"{int(by_cpu[1]) / 2**30:.2f} GiB more were wanted" if by_cpu else text[:120]
    held = f", {own[1]} are this process's" if own else ""
    return f"{wanted[1]} more were wanted; of its {limits[1]}, {limits[2]} are free{held}"


def _remedy(config: TrainConfig, world: World, doing: str) -> str:
    """Settings that need less, as a user would type them."""
    options = config.optimization
    ways = []
    whole = options.batch_size
    if doing == "training" and whole != "auto" and whole > 1:
        batch = next(n for n in range(whole - 1, 0, -1) if whole % n == 0)
        steps = whole // batch * options.accumulate
        ways = [
            f"--batch-size {batch} --accumulate {steps} keeps the {batch * steps * world.size} images "
            "per step, and --batch-size auto finds the largest that fits"
        ]
    less = []
    if doing != "scoring" and config.network.encoder is None and config.network.model == "unet":
        less += [] if config.network.checkpointing else ["--checkpointing"]
    if world.device.type == "cuda" and not options.amp:
        less.append("--amp")
    less.append(f"in a new run a --scale below {config.data.scale:g}")
    ways.append(f"less is needed with {', or '.join(less)}")
    if doing != "building":
        ways.append("go on by --resume")
    return "; ".join(ways)


def available_memory() -> int | None:
    """Bytes that this machine, or the container, has to give; None where the system does not say."""
    found = []
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found.append(int(text.partition("MemAvailable:")[2].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit.isdecimal():
            used = (group / "memory.current").read_text(encoding="ascii")
            found.append(max(0, int(limit) - int(used)))
    except (OSError, IndexError, ValueError):
        pass
    return min(found, default=None)


def _give_back() -> None:
    """Free what a trial has held."""
    gc.collect()
    torch.cuda.empty_cache()
