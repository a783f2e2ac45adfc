"""Two gloo ranks of one thread each over one rank of two threads, the same images per step.

    python -m benchmarks.ranks [--width 16] [--size 240 160] [--images 8]

What train.py's steps are, on made-up batches; and the share of a step that goes to collectives:
what it takes longer than the same step of two ranks that do not speak to each other.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from statistics import median

import torch

from benchmarks.timing import ratios
from tests.ranks import Ranks
from unet_ddp.data.dataset import Sample
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.world import World, alone, without_sync
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.network.sync_batchnorm import synchronise_batchnorm
from unet_ddp.training.losses import DiceCrossEntropy
from unet_ddp.training.step import Schedule, TrainState, train_epoch

WARM_UP = 3


def new_state(world: World, width: int) -> TrainState:
    """A network as train.py builds it."""
    torch.manual_seed(0)
    architecture = choose_architecture("unet", None, channels=3, num_classes=2, width=width)
    network = synchronise_batchnorm(build_network(architecture), world)
    replica = world.replicate(network, torch.zeros(2, 3, 64, 64))
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    return TrainState(network, replica, optimizer, Precision(world.device))


def steps(options: argparse.Namespace, threads: int, speaking: bool) -> list[float]:
    """Seconds of each of some steps, on whatever world this is."""
    torch.set_num_threads(threads)
    world = join("cpu", 60)
    state, loss = new_state(world, options.width), DiceCrossEntropy()
    count = options.images // world.size
    width, height = options.size
    random = torch.Generator().manual_seed(world.rank)
    batch = Sample(
        torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=random),
        torch.randint(0, 2, (count, height, width), dtype=torch.uint8, generator=random),
        torch.arange(count),
    )
    number = options.steps + WARM_UP
    with contextlib.ExitStack() as silence:
        if not speaking:
            silence.enter_context(alone())
            silence.enter_context(without_sync(state.replica))
        reports = train_epoch(
            state, [batch] * number, loss, Preprocessing.for_images(3, scale=1.0),
            Schedule(1e-3, number), steps=number, clip=1.0,
        )  # fmt: skip
        ends = [time.perf_counter() for _ in reports]
    del state, reports
    leave(world)
    return [after - before for before, after in itertools.pairwise(ends)][WARM_UP - 1 :]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--size", type=int, nargs=2, default=(240, 160))
    parser.add_argument("--images", type=int, default=8, help="in a step, over all ranks")
    parser.add_argument("--steps", type=int, default=15, help="in a turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args(argv)
    pool = Ranks(2)
    cases = {
        "one rank of two threads": (1, 2, True),
        "two ranks of one thread": (2, 1, True),
        "two ranks that do not speak": (2, 1, False),
    }
    took: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.turns):
        for name, (size, threads, speaking) in cases.items():
            found = pool.run(size, steps, options, threads, speaking)
            took[name].append(median(map(max, zip(*found, strict=True))))  # the slower rank's
    pool.close()
    one, two, silent = took.values()
    print(
        f"width {options.width}, {options.images} images of {options.size[0]}x{options.size[1]} per step\n"
    )
    print("| | images/s |\n|---|---|")
    for name, seconds in took.items():
        print(f"| {name} | {options.images / median(seconds):.2f} |")
    print(f"| two ranks over one | {ratios(one, two)} |")
    print(f"| share of a step in collectives | {1 - median(silent) / median(two):.1%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
