"""Batch norm over ranks: nn.BatchNorm2d of all ranks' images at once.

Ranks are threads here, whose sum over ranks is a meeting: forward and backward run in them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn

from unet_ddp.distributed.world import World
from unet_ddp.network.sync_batchnorm import SyncBatchNorm2d, _Normalise, synchronise_batchnorm

TWO = World(size=2)
SHARES = ((3, 5, 4, 6), (1, 5, 4, 6))  # images of each rank: not equally many


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Any]]]:
    """Runs a function for ranks 0 and 1 at once, and returns both results."""
    barrier, parts = threading.Barrier(2, timeout=20), {}

    def sum_statistics(tensor: Tensor) -> Tensor:
        barrier.wait()
        parts[threading.get_ident()] = tensor
        barrier.wait()
        return torch.stack(list(parts.values())).sum(0)

    monkeypatch.setattr("unet_ddp.network.sync_batchnorm.sum_statistics", sum_statistics)
    with ThreadPoolExecutor(2) as threads:
        yield lambda work: list(threads.map(work, (0, 1)))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_ranks_compute_what_one_process_computes_of_all_images(
    two_ranks: Callable[..., list[Any]], affine: bool, momentum: float | None, layout: Any
) -> None:
    torch.manual_seed(0)
    whole = nn.BatchNorm2d(5, eps=0.01, momentum=momentum, affine=affine).double()
    for parameter in whole.parameters():
        nn.init.normal_(parameter)
    ours = [SyncBatchNorm2d(5, eps=0.01, momentum=momentum, affine=affine).double() for _ in "ab"]
    for norm in ours:
        norm.load_state_dict(whole.state_dict())
    for _ in range(3):
        shares = [
            (3 + 2 * torch.randn(*s, dtype=torch.float64)).to(memory_format=layout) for s in SHARES
        ]
        weights = [torch.randn(*s, dtype=torch.float64) for s in SHARES]

        def work(
            rank: int, shares: list[Tensor] = shares, weights: list[Tensor] = weights
        ) -> tuple:
            images = shares[rank].requires_grad_()
            out = ours[rank](images)
            (out * weights[rank]).sum().backward()
            return out.detach(), images.grad

        found = two_ranks(work)
        together = torch.cat([share.detach() for share in shares]).requires_grad_()
        expected = whole(together)
        (expected * torch.cat(weights)).sum().backward()
        torch.testing.assert_close(torch.cat([out for out, _ in found]), expected.detach())
        torch.testing.assert_close(torch.cat([grad for _, grad in found]), together.grad)
    for norm in ours:
        torch.testing.assert_close(norm.state_dict(), whole.state_dict())
    for name, parameter in whole.named_parameters():  # DDP takes the mean over ranks
        total = sum(norm.get_parameter(name).grad for norm in ours)
        torch.testing.assert_close(total, parameter.grad)


def test_one_pixel_in_all_has_no_variance() -> None:
    """nn.BatchNorm2d refuses it; here another rank may have more, so a finite result it is."""
    norm = SyncBatchNorm2d(2)
    out = norm(torch.tensor([[[[3.0]], [[-1.0]]]]))
    assert torch.equal(out, torch.zeros(1, 2, 1, 1))
    torch.testing.assert_close(norm.running_mean, torch.tensor([0.3, -0.1]))
    torch.testing.assert_close(norm.running_var, torch.tensor([0.9, 0.9]))


def test_statistics_have_no_gradients() -> None:
    values = torch.randn(2, 3, 4, 4, requires_grad=True)
    normalised, *statistics = _Normalise.apply(values, None, None, 0.1)
    assert normalised.requires_grad and not any(part.requires_grad for part in statistics)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_statistics_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    features = (100 + torch.randn(8, 1, 32, 32)).to(dtype)
    norm = SyncBatchNorm2d(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm(features)
    assert out.dtype == dtype and norm.running_mean.dtype == torch.float32
    expected = nn.BatchNorm2d(1)(features.float())
    torch.testing.assert_close(out.float(), expected, atol=0.01, rtol=0.01)


def test_evaluation_takes_the_running_statistics_of_this_rank_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unet_ddp.network.sync_batchnorm.sum_statistics", None)  # can't be called
    norm = SyncBatchNorm2d(1, eps=0.0).eval()
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(4.0)
    assert norm(torch.full((1, 1, 2, 2), 8.0)).unique().tolist() == [3.0]
    assert norm.num_batches_tracked == 0


def test_statistics_that_are_not_tracked_stay_none() -> None:
    norm = SyncBatchNorm2d(2, track_running_stats=False)
    images = torch.randn(4, 2, 3, 3)
    torch.testing.assert_close(norm(images), nn.BatchNorm2d(2)(images))
    assert norm.running_mean is None and norm.num_batches_tracked is None


def test_a_converted_network_shares_what_it_has_learnt() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 3, 1),
        nn.Sequential(nn.BatchNorm2d(3, eps=0.5, momentum=0.7)),
        nn.BatchNorm1d(2),
    )
    before = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    old = network[1][0].eval()
    converted = synchronise_batchnorm(network, TWO)
    new = converted[1][0]
    assert converted is network and type(new) is SyncBatchNorm2d
    assert (new.num_features, new.eps, new.momentum, new.training) == (3, 0.5, 0.7, False)
    after = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)
    assert type(network[2]) is nn.BatchNorm1d and old is not new
    bare = synchronise_batchnorm(nn.BatchNorm2d(3, affine=False, track_running_stats=False), TWO)
    assert type(bare) is SyncBatchNorm2d and not bare.affine and not bare.track_running_stats


def test_one_rank_keeps_its_network() -> None:
    norm = nn.BatchNorm2d(3)
    assert synchronise_batchnorm(norm, World()) is norm
    network = nn.Sequential(norm)
    assert synchronise_batchnorm(network, World())[0] is norm


def test_timms_batch_norms_keep_their_activation() -> None:
    """torch's own converter drops the activation inside them."""
    torch.manual_seed(0)
    norm = BatchNormAct2d(4, act_layer=nn.SiLU, drop_layer=nn.Dropout)
    nn.init.normal_(norm.weight)
    images = torch.randn(3, 4, 5, 6)
    for mode in (True, False):
        norm.train(mode)
        converted = synchronise_batchnorm(nn.Sequential(norm), TWO)[0]
        assert isinstance(converted, SyncBatchNorm2d) and converted.drop is norm.drop
        torch.manual_seed(1)
        expected = norm(images)
        torch.manual_seed(1)
        torch.testing.assert_close(converted(images), expected)


def test_gpus_have_torchs_own_and_timms_where_there_are_activations() -> None:
    world = World(size=2, device=torch.device("cuda"))
    plain = synchronise_batchnorm(nn.Sequential(nn.BatchNorm2d(3)), world)
    assert type(plain[0]) is nn.SyncBatchNorm
    acting = synchronise_batchnorm(nn.Sequential(BatchNormAct2d(3, act_layer=nn.SiLU)), world)
    assert isinstance(acting[0], nn.SyncBatchNorm) and isinstance(acting[0].act, nn.SiLU)
