"""Two gloo ranks of one thread each over one rank of two threads, the same images per step.

    python -m benchmarks.ranks [--width 16] [--size 240 160] [--images 8]

Steps of train.py on random batches; and the share of a step that goes to collectives: what it
takes longer than the same step of two ranks that do not communicate.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from statistics import median

import torch

from benchmarks.timing import Turns, machine, new_parser, print_table
from tests.ranks import Ranks
from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.replica import replicate
from unet_ddp.distributed.world import World, local_only, without_sync
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.network.sync_batchnorm import synchronise_batchnorm
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.state import Schedule, TrainState
from unet_ddp.training.step import train_steps

WARM_UP = 3
CASES = {  # ranks, threads of each, whether they communicate
    "one rank of two threads": (1, 2, True),
    "two ranks of one thread": (2, 1, True),
    "two ranks that do not communicate": (2, 1, False),
}


def new_state(world: World, width: int, steps: int) -> TrainState:
    """Return a network as train.py builds it, and its optimizer."""
    torch.manual_seed(0)
    architecture = choose_architecture("unet", None, channels=3, num_classes=2, width=width)
    network = synchronise_batchnorm(build_network(architecture).to(world.device), world)
    return TrainState(
        network,
        replicate(network, torch.zeros(2, 3, 64, 64, device=world.device), world),
        torch.optim.AdamW(network.parameters(), fused=True),
        Precision(world.device),
        SegmentationLoss().to(world.device),
        Preprocessing.for_images(3, scale=1.0),
        Schedule(1e-3, steps),
        steps_per_epoch=steps,
    )


def new_batch(world: World, options: argparse.Namespace) -> Sample:
    """Return this rank's share of random images."""
    count, (width, height) = options.images // world.size, options.size
    random = torch.Generator().manual_seed(world.rank)
    return Sample(
        torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=random),
        torch.randint(0, 2, (count, height, width), dtype=torch.uint8, generator=random),
        torch.arange(count),
    )


def time_steps(options: argparse.Namespace, threads: int, communicate: bool) -> list[float]:
    """Return the seconds of each step, on whatever world this is."""
    torch.set_num_threads(threads)
    world = join("cpu", 60)
    batch = new_batch(world, options)
    state = new_state(world, options.width, options.steps + WARM_UP)
    with contextlib.ExitStack() as silence:
        if not communicate:
            silence.enter_context(local_only())
            silence.enter_context(without_sync(state.replica))
        reports = train_steps(state, itertools.repeat(batch), clip=1.0)
        ends = [time.perf_counter() for _ in reports]
    del state, reports
    leave(world)
    return [after - before for before, after in itertools.pairwise(ends)][WARM_UP - 1 :]


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--size", type=int, nargs=2, default=(240, 160))
    parser.add_argument("--images", type=int, default=8, help="in a step, over all ranks")
    parser.add_argument("--steps", type=int, default=15, help="in a turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args(argv)
    pool = Ranks(2)
    took = {name: Turns() for name in CASES}
    for _ in range(options.turns):
        for name, (size, threads, communicate) in CASES.items():
            found = pool.run(size, time_steps, options, threads, communicate)
            slower = map(max, zip(*found, strict=True))  # of the ranks, in each step
            took[name].seconds.append(median(slower))
    pool.close()
    one, two, silent = took.values()
    print(machine())
    print(f"width {options.width}, {options.images} images of {options.size} per step\n")
    rows = [(name, f"{options.images / turns.median:.2f}") for name, turns in took.items()]
    rows.append(("two ranks over one", one.over(two)))
    rows.append(("share of a step in collectives", f"{1 - silent.median / two.median:.1%}"))
    print_table(("", "images/s"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
