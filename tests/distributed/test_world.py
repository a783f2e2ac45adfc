"""A world of one is the identity; of several, all ranks get the same."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests import jobs
from tests.ranks import Ranks
from unet_ddp.distributed import world as world_module
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.replica import freeze_unused, replicate
from unet_ddp.distributed.world import (
    World,
    average_values,
    local_only,
    separate_statistics,
    sum_over_ranks,
    without_sync,
)
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.planners.batch_size import find_batch_size


def test_a_world_of_one_needs_no_group() -> None:
    world, network = World(), nn.Linear(1, 1)
    assert world.is_main and not World(1, 2).is_main
    assert world.on_main(lambda: 7) == 7
    with pytest.raises(KeyError):
        world.on_main(lambda: {}["missing"])
    assert world.gather("x") == ["x"]
    assert replicate(network, torch.zeros(1, 1), world) is network
    ones = torch.ones(2)
    assert sum_over_ranks(ones) is ones
    with without_sync(network):
        pass


def test_hosts_hear_of_each_other_in_a_group_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside NCCL's, which would take what is said through the GPUs."""
    groups: list[Any] = []
    for name in ("all_gather_object", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, lambda *said, group, src=0: groups.append(group))
    world = World(0, 2, store=dist.HashStore(), hosts="hosts")
    world.gather("said")
    world.on_main(lambda: "said")
    assert groups == ["hosts"] * 2


def test_cores_are_shared_by_the_processes_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "usable_cores", lambda logical=False: 7 + 7 * logical)
    assert [World(local_size=size).cores for size in (1, 2, 3, 8)] == [7, 3, 2, 1]
    assert [World(local_size=size).processors for size in (1, 3, 20)] == [14, 4, 1]


class Odd(nn.Module):
    """A network with batch norm, and a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.norm, self.unused = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Linear(1, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.used(images))


def test_unused_parameters_are_frozen_and_a_trial_leaves_no_trace() -> None:
    network = Odd()
    network.norm.running_mean.fill_(3.0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    freeze_unused(network, torch.rand(2, 1, 3, 3))
    frozen = {name for name, value in network.named_parameters() if not value.requires_grad}
    assert frozen == {"unused.weight", "unused.bias"}
    assert all(value.grad is None for value in network.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("error", "same"),
    [
        (UserError("a"), True),
        (RunError("b"), True),
        (MemoryError("c"), True),
        (KeyError("d"), False),
    ],
)
def test_errors_that_are_explained_travel_as_they_are(
    monkeypatch: pytest.MonkeyPatch, error: Exception, same: bool
) -> None:
    def fail() -> None:
        raise error

    items: list[Any] = []
    monkeypatch.setattr(dist, "broadcast_object_list", lambda sent, **how: items.extend(sent))
    with pytest.raises(type(error)):
        World(0, 2, store=dist.HashStore()).on_main(fail)
    nothing, sent = items
    assert nothing is None and (sent is error) is same
    if not same:  # another's class may be unknown there, or not be picklable
        assert type(sent) is RuntimeError and str(sent) == "KeyError('d')"


def in_world(job: Callable[[World], dict[str, Any]]) -> dict[str, Any]:
    """Join the other ranks' world; return what `job` finds there."""
    world = join("cpu", 60)
    found = job(world)
    leave(world)
    return found


def ask_main(world: World) -> dict[str, Any]:
    called: list[int] = []
    found: dict[str, Any] = {
        "place": (world.rank, world.size, world.local_rank, world.local_size, world.is_main),
        "peers": world.gather((os.getpid(), world.peers)),
    }

    def work() -> list[int]:
        called.append(world.rank)
        return [40 + world.rank]

    found["on_main"] = (world.on_main(work), called)
    found["errors"] = []
    for error in (UserError("bad"), ZeroDivisionError("broken")):

        def fail(error: Exception = error) -> None:
            raise error

        try:
            world.on_main(fail)
        except Exception as caught:
            found["errors"].append(repr(caught))
    return found


def test_what_the_main_process_does_all_ranks_learn(ranks: Ranks) -> None:
    one, two = ranks.run(2, in_world, ask_main)
    assert one["place"] == (0, 2, 0, 2, True) and two["place"] == (1, 2, 1, 2, False)
    (first, others), (second, ours) = one["peers"]
    assert one["peers"] == two["peers"] and (others, ours) == ((second,), (first,))
    assert one["on_main"] == ([40], [0]) and two["on_main"] == ([40], [])
    assert one["errors"] == ["UserError('bad')", "ZeroDivisionError('broken')"]
    assert two["errors"] == ["UserError('bad')", "RuntimeError(\"ZeroDivisionError('broken')\")"]


def test_a_rank_that_has_failed_elsewhere_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world_module, "LOOK", timedelta(seconds=0.01))
    store = dist.HashStore()
    store.set("printed", "2")
    with pytest.raises(dist.DistStoreError):
        World(1, 2, store=store).on_main(lambda: None)


def add_up(world: World) -> dict[str, Any]:
    values = torch.tensor([1.0, 2.0]) * (1 + 9 * world.rank)
    values.requires_grad_()
    total = sum_over_ranks(values)
    (total * (world.rank + 1)).sum().backward()
    assert values.grad is not None
    found = {"sum": (total.tolist(), values.grad.tolist())}
    with local_only():
        found["local"] = sum_over_ranks(values).tolist()
    with contextlib.suppress(KeyError), local_only():
        raise KeyError
    found["after"] = sum_over_ranks(torch.ones(1)).tolist()
    means = [torch.full((2,), 3 + 10 * world.rank), torch.full((1, 1), float(world.rank))]
    means += [
        torch.tensor([2**24 + 1]),
        torch.tensor([0.1], dtype=torch.float64),
    ]  # more than float32 holds
    average_values(means)
    found["means"] = [each.tolist() for each in means]
    return found


def test_sums_are_over_both_ranks_and_their_gradients_too(ranks: Ranks) -> None:
    one, two = ranks.run(2, in_world, add_up)
    # 1 + 10, 2 + 20; the gradient is the sum of both ranks' factors, 1 and 2
    assert one["sum"] == two["sum"] == ([11.0, 22.0], [3.0, 3.0])
    assert (one["local"], two["local"]) == ([1.0, 2.0], [10.0, 20.0])
    assert one["after"] == two["after"] == [2.0]
    assert one["means"] == two["means"] == [[8, 8], [[0.5]], [2**24 + 1], [0.1]]


def connect_groups(world: World) -> dict[str, Any]:
    """The groups whose sums `find_batch_size` takes, before it tries a batch."""
    own, asked = dist.new_group(), []
    all_reduce = dist.all_reduce

    class Probe:
        def find_largest(self, *_: Any, **__: Any) -> tuple[int, str]:
            asked.append("probe")
            return 4, ""

    def watched(tensor: Tensor, *, group: Any) -> None:
        asked.append("own" if group is own else "all" if group is None else "another")
        all_reduce(tensor, group=group)

    separate_statistics(own)
    with mock.patch.object(dist, "all_reduce", watched):
        batch = find_batch_size(Probe(), world, 4, start=4)  # type: ignore[arg-type]
    separate_statistics(None)
    return {"batch": batch, "asked": asked}


def test_groups_are_connected_before_memory_is_measured(ranks: Ranks) -> None:
    for found in ranks.run(2, in_world, connect_groups):
        assert found["batch"] == 4 and found["asked"][-1] == "probe"
        assert found["asked"][:-1] == ["all", "own"]
    World().connect()


def train_replica(world: World) -> dict[str, Any]:
    torch.manual_seed(3)
    network = Odd()
    replica = replicate(network, torch.rand(2, 1, 4, 4), world)
    assert isinstance(replica, DistributedDataParallel) and replica.module is network
    is_clean = all(p.grad is None or not p.grad.any() for p in network.parameters())
    network.norm.running_mean.fill_(5.0 + 10 * world.rank)
    images = torch.full((2, 1, 4, 4), 1.0 + world.rank)
    images[0] = 0
    gradients = []
    for alone in (True, False):
        network.zero_grad()
        with without_sync(replica) if alone else local_only():
            replica(images)[:, 0].square().mul(images[:, 0]).sum().backward()
        gradients.append(network.norm.bias.grad[0].item())
    buffer = network.norm.running_mean[0].item()
    return {"clean": is_clean, "gradients": gradients, "buffer": buffer}


def compress_gradients(world: World) -> dict[str, Any]:
    gradients = []
    for compress in (False, True):
        torch.manual_seed(3)
        replica = replicate(nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8), world, compress=compress)
        assert getattr(replica, "batched_grad_copy", True)  # torch 2.15 has it
        torch.manual_seed(world.rank)
        replica(torch.rand(2, 3, 8, 8)).square().sum().backward()
        gradients.append(replica.module.weight.grad)
        del replica
    return {"gradients": gradients}


def test_compressed_gradients_are_the_mean_to_the_rounding_of_bfloat16(ranks: Ranks) -> None:
    one, two = (found["gradients"] for found in ranks.run(2, in_world, compress_gradients))
    for mine, theirs in zip(one, two, strict=True):
        assert torch.equal(mine, theirs) and mine.dtype == torch.float32
    exact, compressed = one
    assert torch.equal(compressed, compressed.bfloat16().float())
    assert not torch.equal(exact, exact.bfloat16().float())
    torch.testing.assert_close(compressed, exact, rtol=2**-6, atol=1e-6)


def test_gradients_are_the_mean_of_both_ranks_and_buffers_their_own(ranks: Ranks) -> None:
    one, two = ranks.run(2, in_world, train_replica)
    assert one["clean"] and two["clean"]
    assert one["buffer"] < 6 < 10 < two["buffer"]  # rank 0's are not broadcast
    (own, mean), (other, other_mean) = one["gradients"], two["gradients"]
    assert own != other
    assert mean == other_mean == pytest.approx((own + other) / 2)


@pytest.mark.thorough
def test_a_compiled_sum_has_its_gradient(ranks: Ranks) -> None:
    """Issue: compiled by torch 2.11, the gradient of a sum in place was 0; on CPUs, its wait broke the graph."""
    for plain, compiled in ranks.run(2, jobs.compiled_gradients):
        assert compiled == plain and any(plain)
