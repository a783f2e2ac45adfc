"""Step time, efficiency and cost of data-parallel training, from what a step is made of.

docs/scaling.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20  # bytes, DDP's own
Arrivals = Sequence[tuple[float, int]]
"""Gradients as the backward pass computes them: the part of the step that is over, and bytes."""


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

    def all_reduce(self, size: float, ranks: int) -> float:
        """Return the seconds of a sum of `size` bytes, by a ring or by doubling if that is faster."""
        link = self.inside if ranks <= self.per_node else self.between
        ring = 2 * (ranks - 1) * (link.latency + size / ranks / link.bandwidth)
        doubling = math.ceil(math.log2(ranks)) * (link.latency + size / link.bandwidth)
        return min(ring, doubling)


@dataclass(frozen=True)
class Work:
    """A step of one rank, and what it has to tell the others."""

    images: int
    compute: float  # seconds of forward pass, loss, backward pass and update
    buckets: Arrivals  # DDP's, each known with its last gradient
    sums: Sequence[int] = ()  # bytes of each sum that the step waits for
    read: float = 0.0  # seconds an image, by all reading processes of the rank together
    image_bytes: float = 0.0


class Step(NamedTuple):
    """The seconds of a step; in them those of small sums, and of waiting for gradients and data."""

    seconds: float
    sums: float
    gradients: float
    data: float


def predict(work: Work, cluster: Cluster, ranks: int) -> Step:
    """Return the step of `ranks` ranks, each with `work`."""
    sums = sum(cluster.all_reduce(size, ranks) for size in work.sums)
    busy = work.compute + sums
    end = 0.0  # of the bucket before: one travels after the other
    for known, size in work.buckets:
        end = max(end, busy * known if cluster.overlaps else busy)
        end += cluster.all_reduce(size, ranks)
    computed = max(busy, end)
    loaded = work.images * max(work.read, ranks * work.image_bytes / cluster.storage)
    seconds = max(computed, loaded)
    return Step(seconds, sums, computed - busy, seconds - computed)


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
