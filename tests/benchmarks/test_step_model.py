"""The model of a step agrees with ranks that are simulated message by message, and with DDP."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from benchmarks.step_model import (
    BUCKET,
    FIRST_BUCKET,
    Cluster,
    Link,
    Sum,
    Work,
    cost,
    efficiency,
    fill_buckets,
    predict,
)

LINK = Link(1e-5, 1e10)
CLUSTER = Cluster(8, LINK, Link(2e-5, 2e9), price=3.0)
WORK = Work(
    images=8,
    compute=0.05,
    buckets=[(0.5, 2 << 20), (0.7, 30 << 20), (0.9, 25 << 20), (0.95, 1 << 20)],
    sums=[Sum((k + 1) / 40, 200) for k in range(40)],
)


def ring(size: float, ranks: int, link: Link) -> float:
    """Each rank hands a part of the sum to the next one, until all have all parts."""
    clocks = [0.0] * ranks
    for _ in range(2 * (ranks - 1)):
        sent = [clock + link.latency + size / ranks / link.bandwidth for clock in clocks]
        clocks = [max(clocks[rank], sent[rank - 1]) for rank in range(ranks)]
    return max(clocks)


def doubling(size: float, ranks: int, link: Link) -> float:
    """Pairs of ranks exchange all that they have, at twice the distance in each round."""
    known = [{rank} for rank in range(ranks)]
    rounds = 0
    while len(known[0]) < ranks:
        known = [known[rank] | known[rank ^ (1 << rounds)] for rank in range(ranks)]
        rounds += 1
    return rounds * (link.latency + size / link.bandwidth)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("size", [8, 1 << 12, 1 << 20, 25 << 20])
def test_a_sum_takes_as_long_as_its_messages(ranks: int, size: int) -> None:
    expected = min(ring(size, ranks, LINK), doubling(size, ranks, LINK))
    assert CLUSTER.all_reduce(size, ranks) == pytest.approx(expected)


def simulate(work: Work, cluster: Cluster, ranks: int, slices: int = 20_000) -> float:
    """Compute in small slices, with one bucket at a time under way."""
    clock, line, told, waiting = 0.0, 0.0, 0, list(work.buckets)
    for done in range(1, slices + 1):
        clock += work.compute / slices
        while told < len(work.sums) and work.sums[told].part <= done / slices:
            clock = max(clock, line) if cluster.is_shared else clock
            clock += cluster.all_reduce(work.sums[told].size, ranks)
            told += 1
        while waiting and waiting[0][0] <= done / slices:
            line = max(line, clock) + cluster.all_reduce(waiting.pop(0)[1], ranks)
    return max(clock, line)


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("is_shared", [False, True])
def test_the_prediction_is_that_of_a_simulated_world(ranks: int, is_shared: bool) -> None:
    cluster = replace(CLUSTER, is_shared=is_shared)
    expected = simulate(WORK, cluster, ranks)
    assert predict(WORK, cluster, ranks).seconds == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_gather_doubles_what_each_rank_has(ranks: int) -> None:
    link, size, clock = CLUSTER.link(ranks), 4096, 0.0
    known = [1] * ranks  # parts of each rank
    while known[0] < ranks:
        clock += link.latency + known[0] * size / link.bandwidth
        known = [2 * count for count in known]
    assert CLUSTER.all_gather(size, ranks) == pytest.approx(clock)


def test_more_ranks_are_never_better_than_ideal_and_slower_links_never_faster() -> None:
    shares = [efficiency(WORK, CLUSTER, ranks) for ranks in (1, 2, 8, 9, 64, 256)]
    assert shares == sorted(shares, reverse=True) and shares[-1] < shares[0] == 1
    prices = [cost(WORK, CLUSTER, ranks) for ranks in (1, 8, 64, 256)]
    assert prices == sorted(prices)
    assert prices[0] == pytest.approx(1e6 / 8 * 0.05 / 3600 * 3.0)
    for link in (LINK._replace(latency=1e-4), LINK._replace(bandwidth=1e9)):
        assert efficiency(WORK, replace(CLUSTER, inside=link), 8) < efficiency(WORK, CLUSTER, 8)


def test_gradients_wait_for_the_end_where_the_computing_cores_carry_them() -> None:
    step = predict(WORK, CLUSTER, 8)
    without = predict(WORK, replace(CLUSTER, overlaps=False), 8)
    assert without.gradients == pytest.approx(
        sum(CLUSTER.all_reduce(size, 8) for _, size in WORK.buckets)
    )
    assert step.gradients < without.gradients and step.sums == without.sums


def test_a_step_waits_for_slow_reading_and_for_storage_that_all_share() -> None:
    slow = replace(WORK, read=0.01)  # 80 ms for 8 images
    assert predict(slow, CLUSTER, 1) == (0.08, 0, 0, 0, pytest.approx(0.03))
    shared = replace(CLUSTER, storage=1e9)
    read = replace(WORK, image_bytes=1e6)
    assert predict(read, shared, 1).data == 0
    assert predict(read, shared, 8).seconds == pytest.approx(0.064)
    assert predict(read, shared, 64).seconds == pytest.approx(0.512)


def test_buckets_are_ddps() -> None:
    draw = random.Random(4)
    sizes = [draw.choice([64, 1 << 12, 1 << 18, 3 << 20]) for _ in range(60)]
    parts = [(index / len(sizes), 4 * size) for index, size in enumerate(sizes, start=1)]
    tensors = [torch.empty(size, device="meta") for size in sizes]
    groups, _ = dist._compute_bucket_assignment_by_size(tensors, [FIRST_BUCKET, BUCKET])
    expected = [(parts[max(g)][0], sum(parts[i][1] for i in g)) for g in groups]
    assert fill_buckets(parts) == expected and len(expected) > 2
