"""The peak of a training step's memory, over what no step can do without.

    python -m benchmarks.memory

That is: weights, gradients, the optimizer's two moments, and what autograd keeps for the backward
pass. On a CPU the process's own peak, as the system counts it, in a process for each row; on a GPU
torch's count of what it has allocated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.ranks import new_batch, new_state
from benchmarks.timing import new_parser, print_table
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.world import World
from unet_ddp.extras.planners.batch_size import counting_saved_bytes
from unet_ddp.training.prefetch import copy_to_device
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import train_steps

CASES = ((16, 480, 320, 4), (32, 480, 320, 4), (64, 240, 160, 4))
"""Width of the network; width, height and number of images."""


def resident(*, peak: bool = False) -> int:
    """Return the bytes of this process's memory now, or at most since `forget_peak`."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    key = "VmHWM:" if peak else "VmRSS:"
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(key)[2].split()[0]) * 1024


def forget_peak() -> None:
    """Let the peak be the memory in use now."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def take_steps(state: TrainState, size: tuple[int, int], count: int, steps: int = 1) -> None:
    """Take the steps of train.py on `count` images of `size` (width, height)."""
    world = World(device=state.precision.device)
    batch = copy_to_device(
        new_batch(world, argparse.Namespace(images=count, size=size)), world.device
    )
    for _ in train_steps(state, iter([batch] * steps), until=state.done + steps, clip=1.0):
        pass


def measure(channels: int, width: int, height: int, count: int) -> tuple[str, ...]:
    """Return one row."""
    world = World(device=pick_device("auto"))
    take_steps(new_state(world, channels, 10), (32, 32), count)  # libraries come into memory
    before = resident()
    state = new_state(world, channels, 10)
    take_steps(state, (width, height), count)
    with counting_saved_bytes() as saved:
        take_steps(state, (width, height), count)
    storages = [parameter.untyped_storage() for parameter in state.network.parameters()]
    own = {storage.data_ptr(): storage.nbytes() for storage in storages}
    weights = 4 * sum(own.values())
    activations = sum(size for address, size in saved.items() if address not in own)
    forget_peak()
    take_steps(state, (width, height), count, steps=2)
    peak = resident(peak=True) - before
    sizes = (f"{size / 1e6:.0f} MB" for size in (weights, activations, peak))
    ratio = f"{peak / (weights + activations):.3f}"
    return (str(channels), f"{count} of {width}x{height}", *sizes, ratio)


def main(argv: list[str] | None = None) -> int:
    """Print the table, each row from a new process."""
    parser = new_parser(__doc__)
    parser.add_argument("--case", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.case:
        print(*measure(*options.case), sep="\t")
        return 0

    def row(case: tuple[int, ...]) -> list[str]:
        words = [sys.executable, "-m", "benchmarks.memory", "--case", *map(str, case)]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.split(
            "\t"
        )

    head = ("width", "images", "weights, gradients, moments", "kept by autograd", "peak", "ratio")
    print_table(head, ([cell.strip() for cell in row(case)] for case in CASES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
