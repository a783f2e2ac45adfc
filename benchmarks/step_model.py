"""Step time, efficiency and cost of data-parallel training, from what a step is made of.

docs/scaling-model.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes, DDP's own
Arrivals = Sequence[tuple[float, int]]
"""Gradients as the backward pass computes them: the part of the step that is over, and bytes."""


class Sum(NamedTuple):
    """A small collective that a step waits for, of batch norm or the loss."""

    part: float  # of the step that is over
    size: int  # bytes of each rank
    is_gather: bool = False  # every rank gets the bytes of each other, instead of their sum


class Link(NamedTuple):
    """The cost of a message: `latency` seconds, and its bytes over `bandwidth`, bytes a second."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Cluster:
    """Nodes of `per_node` ranks; collectives of more ranks have the speed of the link between."""

    per_node: int
    inside: Link
    between: Link
    storage: float = math.inf  # bytes a second that all ranks together read
    price: float = 0.0  # of a rank for an hour
    overlaps: bool = True  # gradients travel during the backward pass, by no core that computes it
    is_shared: bool = False  # small sums wait for the gradients under way, in one communicator

    def all_reduce(self, size: float, ranks: int) -> float:
        """Return the seconds of a sum of `size` bytes, by a ring or by doubling if that is faster."""
        link = self.link(ranks)
        ring = 2 * (ranks - 1) * (link.latency + size / ranks / link.bandwidth)
        doubling = math.ceil(math.log2(ranks)) * (link.latency + size / link.bandwidth)
        return min(ring, doubling)

    def all_gather(self, size: float, ranks: int) -> float:
        """Return the seconds until each rank has the `size` bytes of all, by doubling."""
        link = self.link(ranks)
        return math.ceil(math.log2(ranks)) * link.latency + (ranks - 1) * size / link.bandwidth

    def link(self, ranks: int) -> Link:
        """Return the slowest link between so many ranks."""
        return self.inside if ranks <= self.per_node else self.between


@dataclass(frozen=True)
class Work:
    """A step of one rank, and what it has to tell the others."""

    images: int
    compute: float  # seconds of forward pass, loss, backward pass and update
    buckets: Arrivals  # DDP's, each known with its last gradient
    sums: Sequence[Sum] = ()
    read: float = 0.0  # seconds an image, by all reading processes of the rank together
    image_bytes: float = 0.0


class Step(NamedTuple):
    """The seconds of a step, and those in it of small sums and of waiting."""

    seconds: float
    sums: float
    queue: float  # small sums behind gradients
    gradients: float  # after the backward pass
    data: float


def predict(work: Work, cluster: Cluster, ranks: int) -> Step:
    """Return the step of `ranks` ranks, each with `work`."""
    sums = queue = end = 0.0  # end: of the bucket before, as one travels after the other
    # A sum comes before the gradient of the same layer, which may fill a bucket.
    events = [(s.part, 0, s.size, s.is_gather) for s in work.sums]
    events += [(part if cluster.overlaps else 1.0, 1, size, False) for part, size in work.buckets]
    for part, is_bucket, size, is_gather in sorted(events):
        now = part * work.compute + sums + queue
        takes = (cluster.all_gather if is_gather else cluster.all_reduce)(size, ranks)
        if is_bucket:
            end = max(end, now) + takes
        else:
            queue += max(0.0, end - now) if cluster.is_shared else 0.0
            sums += takes
    busy = work.compute + sums + queue
    computed = max(busy, end)
    loaded = work.images * max(work.read, ranks * work.image_bytes / cluster.storage)
    seconds = max(computed, loaded)
    return Step(seconds, sums, queue, computed - busy, seconds - computed)


def efficiency(work: Work, cluster: Cluster, ranks: int) -> float:
    """Return images a second and rank, over those of one rank."""
    return predict(work, cluster, 1).seconds / predict(work, cluster, ranks).seconds


def cost(work: Work, cluster: Cluster, ranks: int) -> float:
    """Return the price of a million images."""
    return 1e6 / work.images * predict(work, cluster, ranks).seconds / 3600 * cluster.price


def fill_buckets(gradients: Arrivals) -> Arrivals:
    """Return the gradients as DDP sends them: the first mebibyte, then 25 at a time."""
    buckets, size, limit = [], 0, FIRST_BUCKET
    for known, more in gradients:
        size += more
        if size >= limit:
            buckets.append((known, size))
            size, limit = 0, BUCKET
    return [*buckets, (gradients[-1][0], size)] if size else buckets
