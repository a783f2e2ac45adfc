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

from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import pick_device
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.training.cost import counting_kept
from unet_ddp.training.losses import DiceCrossEntropy
from unet_ddp.training.step import Schedule, TrainState, train_epoch

CASES = ((16, 480, 320, 4), (32, 480, 320, 4), (64, 240, 160, 4))
"""Width, and the images' width, height and number."""


def resident(*, peak: bool = False) -> int:
    """Bytes of this process's memory now, or at most since `forget_peak`."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    key = "VmHWM:" if peak else "VmRSS:"
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(key)[2].split()[0]) * 1024


def forget_peak() -> None:
    """Begin to look for a peak anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def new_state(width: int) -> TrainState:
    """A network and its optimizer."""
    device = pick_device("auto")
    architecture = choose_architecture("unet", None, channels=3, num_classes=2, width=width)
    network = build_network(architecture).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    return TrainState(
        network,
        network,
        optimizer,
        Precision(device),
        sums=torch.zeros(3, dtype=torch.float64, device=device),
    )


def take_steps(state: TrainState, width: int, height: int, count: int, steps: int) -> None:
    """What train.py does in each step."""
    image = torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8)
    batch = Sample(image, (image[..., 0] > 127).to(torch.uint8), torch.arange(count))
    state.step = 0
    for _ in train_epoch(
        state, [batch] * steps, DiceCrossEntropy(), Preprocessing.for_images(3, scale=1.0),
        Schedule(1e-3, steps), steps=steps, clip=1.0,
    ):  # fmt: skip
        pass


def measure(channels: int, width: int, height: int, count: int) -> None:
    """One row."""
    take_steps(new_state(channels), 32, 32, count, 1)  # libraries come into memory
    before = resident()
    state = new_state(channels)
    take_steps(state, width, height, count, 1)
    with counting_kept() as kept:
        take_steps(state, width, height, count, 1)
    own = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
        for p in state.network.parameters()
    }
    weights = sum(own.values())
    activations = sum(size for address, size in kept.items() if address not in own)
    needed = 4 * weights + activations
    forget_peak()
    take_steps(state, width, height, count, 2)
    peak = resident(peak=True) - before
    print(
        f"| {channels} | {count} of {width}x{height} | {4 * weights / 1e6:.0f} MB | "
        f"{activations / 1e6:.0f} MB | {peak / 1e6:.0f} MB | {peak / needed:.3f} |",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.case:
        measure(*options.case)
        return 0
    print("| width | images | weights, gradients, moments | kept by autograd | peak | ratio |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in CASES:
        words = ["-m", "benchmarks.memory", "--case", *map(str, case)]
        subprocess.run([sys.executable, *words], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
