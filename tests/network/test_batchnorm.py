"""Batch norm's running averages have no bias at the start, on any network, rank and device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import PIXELS, make_batch, make_network, make_state
from unet_ddp.network.batchnorm import average_over_ranks, correct_bias, count_as_sound
from unet_ddp.network.sync_batchnorm import SyncBatchNorm2d
from unet_ddp.training.state import Schedule
from unet_ddp.training.step import train_steps

COUNT = 13  # batches; the momentum's 1 / 10 is between


def pixels(number: int) -> Tensor:
    random = torch.Generator().manual_seed(number)
    return torch.randn(2, 3, 4, 5, generator=random, dtype=torch.float64) * (1 + number) + number


def copies(network: nn.Module) -> dict[Tensor, Tensor]:
    return {buffer: buffer.clone() for buffer in network.buffers()}


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.mean((0, 2, 3)), values.transpose(0, 1).flatten(1).var(1)


def averages(batches: int, momentum: float) -> tuple[Tensor, Tensor]:
    """The averages of so many batches, by the definition."""
    mean = variance = torch.zeros(3, dtype=torch.float64)
    for number in range(batches):
        share = max(momentum, 1 / (number + 1))
        new = moments(pixels(number))
        mean, variance = mean + share * (new[0] - mean), variance + share * (new[1] - variance)
    return mean, variance


@pytest.mark.parametrize("momentum", [0.1, 0.3])
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, SyncBatchNorm2d])
def test_the_first_batches_weigh_alike(kind: type[nn.BatchNorm2d], momentum: float) -> None:
    norm = kind(3, momentum=momentum).double()
    for number in range(COUNT):
        before = copies(norm)
        norm(pixels(number))
        correct_bias(norm, before, batches=1)
        mean, variance = averages(number + 1, momentum)
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, variance)


@pytest.mark.parametrize("momentum", [0.01, 0.1, 0.3])
def test_the_variance_of_a_constant_channel_is_not_negative(momentum: float) -> None:
    norm = nn.BatchNorm2d(3, momentum=momentum)
    for _ in range(COUNT):
        before = copies(norm)
        norm(torch.zeros(2, 3, 4, 5))
        correct_bias(norm, before, batches=1)
        assert norm.running_var is not None and bool((norm.running_var >= 0).all())
        assert bool((norm.running_var < 1e-4).all())


def test_accumulated_batches_weigh_like_those_of_the_steps_before() -> None:
    """After two steps of two batches, each step has half of the weight."""
    norm = nn.BatchNorm2d(3).double()
    means = []
    for step in range(2):
        before = copies(norm)
        for number in (2 * step, 2 * step + 1):
            norm(pixels(number))
        correct_bias(norm, before, batches=2)
        first, second = (moments(pixels(2 * step + k))[0] for k in (0, 1))
        means.append((0.9 * first + second) / 1.9)  # within a step, as torch does it
    torch.testing.assert_close(norm.running_mean, (means[0] + means[1]) / 2)


def test_many_batches_later_nothing_changes() -> None:
    norm, plain = (nn.BatchNorm2d(3) for _ in range(2))
    for own in (norm, plain):
        own.num_batches_tracked.fill_(9)
    before = copies(norm)
    for own in (norm, plain):
        own(pixels(1).float())
    correct_bias(norm, before, batches=1)
    assert torch.equal(norm.running_mean, plain.running_mean)
    assert torch.equal(norm.running_var, plain.running_var)


def test_ranks_that_normalise_alone_share_the_mean_of_their_averages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other rank has everything three times as large."""
    network = nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(3)), nn.GroupNorm(1, 3)).double()
    network(pixels(1))
    network[2].eval()
    before = copies(network)

    def sum_of_both(values: Tensor) -> Tensor:
        return values + torch.cat([3 * values[:-1], values[-1:]])

    monkeypatch.setattr("unet_ddp.network.batchnorm.sum_statistics", sum_of_both)
    average_over_ranks(network)
    for norm in network[:2]:
        for buffer in (norm.running_mean, norm.running_var):
            torch.testing.assert_close(buffer, 2 * before[buffer])
        assert norm.num_batches_tracked == 1
    for buffer in network[2].buffers():
        assert torch.equal(buffer, before[buffer])
    average_over_ranks(nn.GroupNorm(1, 3))


def test_frozen_norms_stay_as_they_are() -> None:
    norm = nn.BatchNorm2d(3).double().eval()
    before = copies(norm)
    norm(pixels(0))
    correct_bias(norm, before, batches=1)
    assert norm.running_mean.tolist() == [0, 0, 0] and norm.running_var.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, SyncBatchNorm2d])
def test_norms_without_momentum_stay_as_they_are(kind: type[nn.BatchNorm2d]) -> None:
    """Also if it is set to 0 in a run, as by a callback."""
    norm = kind(3, momentum=0.3).double()
    for number, momentum in enumerate((0.3, 0.0, 0.0)):
        norm.momentum = momentum
        before = copies(norm)
        norm(pixels(number))
        correct_bias(norm, before, batches=1)
    mean, variance = averages(1, 0.3)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, variance)


def test_averages_that_came_with_weights_are_not_those_of_a_new_network() -> None:
    """Files of early torch have no counts; new layers among them still begin with the first batch."""
    network = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.BatchNorm2d(3)])
    network[0].running_mean.fill_(2.0)
    network[1].running_mean.fill_(2.0)
    network[1].num_batches_tracked.fill_(5)
    count_as_sound(network)
    assert [int(norm.num_batches_tracked) for norm in network] == [100, 5, 0]


def test_a_network_with_other_norms_is_left_alone() -> None:
    network = nn.Sequential(
        nn.GroupNorm(1, 3), nn.InstanceNorm2d(3, track_running_stats=True),
        nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, track_running_stats=False),
    )  # fmt: skip
    before = copies(network)
    correct_bias(network, {}, batches=1)
    assert all(torch.equal(buffer, before[buffer]) for buffer in network.buffers())


def test_a_run_validates_with_the_averages_of_its_first_steps() -> None:
    """A rate of 0: the weights stay, so the averages are the mean over the batches."""
    network = make_network()
    state = make_state(network, ema=0.9, schedule=Schedule(0.0, 8), steps=4)
    list(train_steps(state, map(make_batch, range(3)), until=3))
    inputs = [network[0](PIXELS(make_batch(number).image, torch.float64)) for number in range(3)]
    mean = torch.stack([moments(values)[0] for values in inputs]).mean(0)
    for scored in (network, state.validation_network):
        torch.testing.assert_close(scored[1].running_mean, mean.detach())
