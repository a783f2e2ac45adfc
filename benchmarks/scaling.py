"""Step time, efficiency and cost on 1, 8, 64 and 256 GPUs, predicted on paper from measured pieces.

    python -m benchmarks.scaling              # the table, from one GPU's speed and published links
    python -m benchmarks.scaling queue        # small sums behind gradients, on 8, 64 and 512 GPUs
    python -m benchmarks.scaling published    # the same model on a vendor's published figures
    python -m benchmarks.scaling here         # and on two gloo ranks, over benchmarks.ranks' step

docs/scaling-model.md has the formulas, and where each figure is from.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from statistics import mean, median
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.ranks import new_batch, new_state
from benchmarks.step_model import (
    Arrivals,
    Cluster,
    Link,
    Sum,
    Work,
    cost,
    efficiency,
    fill_buckets,
    predict,
)
from benchmarks.timing import machine, new_parser, print_table
from tests.ranks import Ranks
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.world import local_only, sum_over_ranks, without_sync
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.training.step import train_steps

LARGE = 8 << 20  # bytes of a sum that shows the bandwidth

# -- the pieces that are measured here -------------------------------------------------------------


class Norm(NamedTuple):
    """A batch norm: the parts of the step that are over when it needs the other ranks, and its width."""

    there: float
    back: float
    channels: int


class Timeline(NamedTuple):
    """When a step comes to what it has to tell the others, as parts of the step."""

    gradients: Arrivals
    norms: Sequence[Norm]
    loss: float


def measure_step(network: nn.Module, *, side: int = 128) -> Timeline:
    """Return the timeline of a step on one square image of `side` pixels: that of the fastest of five."""
    came: list[tuple[nn.Parameter, float]] = []
    went: list[tuple[nn.BatchNorm2d, float]] = []
    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: came.append((p, time.perf_counter()))
        )
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.register_forward_hook(lambda n, *_: went.append((n, time.perf_counter())))
    found = []
    for _ in range(5):
        came.clear()
        went.clear()
        began = time.perf_counter()
        out = network(torch.rand(1, 3, side, side)).sum()
        middle = time.perf_counter()
        out.backward()
        took = time.perf_counter() - began
        back = {parameter: (when - began) / took for parameter, when in came}
        there = {norm: (when - began) / took for norm, when in went}
        step = Timeline(
            [(part, p.numel() * p.element_size()) for p, part in back.items()],
            [Norm(there[n], back[n.weight], n.num_features) for n in norms],
            (middle - began) / took,
        )
        found.append((took, step))
    return min(found, key=itemgetter(0))[1]


def list_sums(step: Timeline, *, is_gpu: bool, classes: int = 2) -> list[Sum]:
    """Return the small collectives of a step: of each batch norm and of the loss, there and back."""
    sums = 2 * [Sum(step.loss, 4 * (3 * classes + 1))]
    for there, back, width in step.norms:
        sums.append(Sum(there, (4 if is_gpu else 8) * (2 * width + 1), is_gather=is_gpu))
        sums.append(Sum(back, 4 * 2 * width))
    return sums


def time_pieces(options: argparse.Namespace) -> list[float]:
    """Return the median seconds of a step alone, a sum of 16 bytes, one of `LARGE`, and a true step.

    They take turns. A sum follows a layer's work: a rank waits for the other as it does in a step.
    """
    torch.set_num_threads(1)
    world = join("cpu", 60)
    state = new_state(world, options.width, 2 * options.steps)
    steps = train_steps(state, itertools.repeat(new_batch(world, options)), clip=1.0)
    image, kernel = torch.rand(4, 16, 240, 160), torch.rand(16, 16, 3, 3)

    def time_sum(size: int) -> float:
        nn.functional.conv2d(image, kernel)
        return seconds(lambda: sum_over_ranks(torch.zeros(size // 4)))

    took = []
    for _ in range(options.steps):
        with local_only(), without_sync(state.replica):
            alone = seconds(steps.__next__)
        small, large = (median(time_sum(size) for _ in range(8)) for size in (16, LARGE))
        took.append((alone, small, large, seconds(steps.__next__)))
    del state, steps
    gc.collect()  # DDP's objects go before their group
    leave(world)
    return [median(times) for times in zip(*took[2:], strict=True)]


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# -- the tables ------------------------------------------------------------------------------------

# Eight A100 a node, and two nodes of them: the bandwidths of nccl issue 527, and a quarter of the 12.9 us of a sum of eight
# bytes, which takes four rounds on 16 GPUs (aws-k8s-tester pull request 503).
A100 = Cluster(8, Link(3.2e-6, 230.8e9), Link(3.2e-6, 29.6e9))

# NVIDIA's DeepLearningExamples on 8 A100, mixed precision: parameters, images a step and GPU, images/s
# of one GPU and of eight. Their norms need no other rank.
PUBLISHED = (
    ("nnU-Net, 2-D", 20_613_092, 128, 1345.29, 10694.10),
    ("nnU-Net, 2-D", 20_613_092, 64, 1238.68, 9417.27),
    ("nnU-Net, 2-D", 20_613_092, 32, 1040.58, 7747.27),
    ("classic U-Net", 34_512_258, 8, 141.03, 1000.89),
    ("classic U-Net", 34_512_258, 1, 75.04, 384.27),
)

# Links between nodes of eight GPUs: assumed, from their line rates. A sum over ranks has nine tenths
# of it (RoCE, InfiniBand) or, by way of the hosts' memory, half of it.
NETWORKS = {
    "InfiniBand, 8 x 200 Gb/s": Link(3.2e-6, 180e9),
    "RoCE, 100 Gb/s": Link(5e-6, 11.25e9),
    "TCP, 100 Gb/s": Link(25e-6, 6.25e9),
}

ASSUMED = {
    "images-per-second": (141.03, "of one GPU: benchmarks.step"),
    "batch": (8, "images of a step and GPU"),
    "samples-per-second": (27.3, "of one reading process: benchmarks.reading"),
    "workers": (12, "reading processes of a GPU"),
    "image-kb": (150, "of an image and its mask"),
    "storage": (10, "GB/s to all nodes"),
    "between": (29.6, "GB/s between nodes, as nccl-tests' busbw"),
    "latency": (3.2, "us of a round between nodes"),
    "price": (3.0, "of a GPU for an hour"),
}


def new_network(width: int) -> nn.Module:
    """Return the classic U-Net as train.py builds it."""
    return build_network(choose_architecture("unet", None, channels=3, num_classes=2, width=width))


def new_work(options: argparse.Namespace) -> Work:
    """Return a step of one GPU, the classic U-Net of width 64."""
    step, batch = measure_step(new_network(64)), int(options.batch)
    buckets, sums = fill_buckets(step.gradients), list_sums(step, is_gpu=True)
    read = 1 / (options.samples_per_second * options.workers)
    print(f"{sum(s for _, s in buckets) / 1e6:.0f} MB of gradients in {len(buckets)} buckets,")
    print(f"{len(sums)} small collectives, {batch} images per step and GPU; milliseconds\n")
    compute = batch / options.images_per_second
    return Work(batch, compute, buckets, sums, read, options.image_kb * 1e3)


def print_paper(options: argparse.Namespace) -> None:
    """Print the table of 1 to 256 GPUs."""
    work = new_work(options)
    between = Link(options.latency * 1e-6, options.between * 1e9)
    cluster = replace(A100, between=between, storage=options.storage * 1e9, price=options.price)
    rows = []
    for ranks in (1, 8, 64, 256):
        step = predict(work, cluster, ranks)
        share = f"{efficiency(work, cluster, ranks):.1%}"
        speed = f"{ranks * work.images / step.seconds:.0f}"
        price = f"{cost(work, cluster, ranks):.2f}"
        parts = step.seconds, step.sums, step.gradients, step.data
        rows.append((ranks, *(f"{1e3 * part:.2f}" for part in parts), speed, share, price))
    head = "GPUs", "step", "sums", "gradients", "data", "images/s", "efficiency", "million images"
    print_table(head, rows)


def print_queue(options: argparse.Namespace) -> None:
    """Print what small sums lose behind gradients, in one communicator, over several networks."""
    work = new_work(options)
    half = replace(work, buckets=[(part, size // 2) for part, size in work.buckets])
    rows = []
    for ranks, names in ((8, ["NVLink"]), (64, NETWORKS), (512, NETWORKS)):
        for name in names:
            apart = replace(A100, between=NETWORKS.get(name, A100.between))
            shared = replace(apart, is_shared=True)
            waits = f"{1e3 * predict(work, shared, ranks).queue:.2f}"
            sums, left = (f"{1e3 * t:.2f}" for t in predict(work, apart, ranks)[1:4:2])
            cases = (work, shared), (work, apart), (half, apart)
            shares = (f"{efficiency(*case, ranks):.1%}" for case in cases)
            rows.append((ranks, name, sums, left, waits, *shares))
    head = (
        "GPUs",
        "network",
        "sums",
        "gradients",
        "sums wait, shared",
        "efficiency, shared",
        "own",
        "bfloat16",
    )
    print_table(head, rows)


def print_published(options: argparse.Namespace) -> None:
    """Print the vendor's speed of eight GPUs over one, and the model's."""
    arrivals = measure_step(new_network(64)).gradients
    whole = sum(size for _, size in arrivals)
    rows = []
    for name, parameters, batch, one, eight in PUBLISHED:
        buckets = fill_buckets([(at, size * 4 * parameters // whole) for at, size in arrivals])
        found, true = 8 * efficiency(Work(batch, batch / one, buckets), A100, 8), eight / one
        rows.append((name, batch, f"{true:.2f}", f"{found:.2f}", f"{found / true - 1:+.1%}"))
    print_table(("network", "images", "published", "predicted", "error"), rows)


def print_here(options: argparse.Namespace) -> None:
    """Print the predicted step of two gloo ranks over the measured one, turn by turn."""
    network, pool, rows = new_network(options.width), Ranks(2), []
    timeline = measure_step(network)
    buckets, sums = fill_buckets(timeline.gradients), list_sums(timeline, is_gpu=False)
    for turn in range(options.turns):
        found = pool.run(2, time_pieces, options)
        alone, small, large, together = (mean(times) for times in zip(*found, strict=True))
        link = Link(small, LARGE / max(large - small, 1e-9))
        work = Work(options.images // 2, alone, buckets, sums)
        step = predict(work, Cluster(2, link, link, overlaps=False), 2)
        times = alone, step.sums, step.gradients, step.seconds, together
        rows.append((turn + 1, *(f"{1e3 * t:.1f}" for t in times), step.seconds / together))
    pool.close()
    print(machine())
    cells = [(*row[:-1], f"{row[-1]:.3f}") for row in rows]
    print_table(("turn", "alone", "sums", "gradients", "predicted", "measured", "ratio"), cells)
    print(f"\nmilliseconds; predicted over measured: {median(r[-1] for r in rows):.3f}, the median")


TABLES = {
    "paper": print_paper,
    "queue": print_queue,
    "published": print_published,
    "here": print_here,
}


def main(argv: list[str] | None = None) -> int:
    """Print one of the tables."""
    parser = new_parser(__doc__)
    parser.add_argument("table", nargs="?", choices=TABLES, default="paper")
    for name, (value, text) in ASSUMED.items():
        parser.add_argument(
            f"--{name}", type=float, default=value, help=f"paper, queue: {text} ({value})"
        )
    parser.add_argument("--turns", type=int, default=5, help="here")
    parser.set_defaults(width=16, size=(240, 160), images=8, steps=8)  # of benchmarks.ranks
    options = parser.parse_args(argv)
    TABLES[options.table](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
