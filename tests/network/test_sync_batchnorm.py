"""Batch norm over ranks: nn.BatchNorm2d of all ranks' images at once.

Ranks are threads here, whose sum over ranks is a meeting: forward and backward run in them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # torch 2.10 has collectives of fake tensors here
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.nn import functional as F

from tests.batchnorm_kernels import reference_kernels
from tests.operations import Operations
from unet_ddp.distributed.world import World
from unet_ddp.network.sync_batchnorm import (
    GpuSyncBatchNorm2d,
    SyncBatchNorm2d,
    fill_count,
    synchronise_batchnorm,
)
from unet_ddp.network.unet import UNet

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
    """They would be tensors of zeros, made in each layer at each step."""
    norm = SyncBatchNorm2d(3)
    out = norm(torch.randn(2, 3, 4, 4, requires_grad=True)).sum()
    with Operations() as done:
        out.backward()
    assert done.calls and not done.of(torch.ops.aten.zeros.default)
    assert not any(buffer.requires_grad for buffer in norm.buffers())


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
    norm = SyncBatchNorm2d(1, eps=5.0).eval()
    norm.running_mean.fill_(2.0)
    norm.running_var.fill_(4.0)
    assert norm(torch.full((1, 1, 2, 2), 8.0)).unique().tolist() == [2.0]
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
        nn.GroupNorm(1, 3),
    )
    before = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    old, more = network[1][0].eval(), [network[1][0]]
    old.register_forward_hook(lambda module, given, output: output * 3)
    converted = synchronise_batchnorm(network, TWO)
    new = converted[1][0]
    assert converted is network and type(new) is SyncBatchNorm2d
    assert (new.num_features, new.eps, new.momentum, new.training) == (3, 0.5, 0.7, False)
    after = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)
    assert type(network[2]) is nn.GroupNorm and more[0] is old is new
    features = torch.randn(2, 3, 4, 4)
    expected = F.batch_norm(features, torch.zeros(3), torch.ones(3), eps=0.5)
    torch.testing.assert_close(new(features), 3 * expected)
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
        converted = synchronise_batchnorm(nn.Sequential(copy.deepcopy(norm)), TWO)[0]
        assert isinstance(converted, SyncBatchNorm2d) and type(converted.drop) is nn.Dropout
        torch.manual_seed(1)
        expected = norm(images)
        torch.manual_seed(1)
        torch.testing.assert_close(converted(images), expected)


@pytest.fixture
def fake_gpus() -> Iterator[World]:
    """Rank 0 of four, whose tensors are fake: reading one of their values on the host raises."""
    world = World(size=4, device=torch.device("cuda"))
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4)
    with reference_kernels(), fake_tensor.FakeTensorMode():
        yield world
    fill_count.cache_clear()  # fake tensors are not for other tests
    dist.destroy_process_group()


def mixed_network(world: World) -> nn.Module:
    """As autocast has it, which torch refuses without a GPU: all but batch norm in bfloat16."""
    network = synchronise_batchnorm(UNet(3, 2, width=2), world)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            for name, parameter in [*module.named_parameters()]:
                setattr(module, name, nn.Parameter(parameter.detach().bfloat16()))
    return network


def test_no_layer_of_a_gpu_makes_the_host_wait_and_each_has_two_small_collectives(
    fake_gpus: World,
) -> None:
    """On fake tensors of a CPU: autograd asks CUDA's driver for the others."""
    network = mixed_network(fake_gpus)
    assert sum(type(module) is GpuSyncBatchNorm2d for module in network.modules()) == 18
    images = torch.randn(2, 3, 32, 48, dtype=torch.bfloat16)
    for _ in range(2):  # the second time the counts are known
        with Operations() as done:
            network(images).sum().backward()
    assert all(isinstance(p.grad, fake_tensor.FakeTensor) for p in network.parameters())
    aten, c10d = torch.ops.aten, torch.ops.c10d
    for ((stats, _), _), ((normalised, *_), _) in zip(
        *map(done.of, (aten.batch_norm_stats.default, aten.batch_norm_elemt.default)), strict=True
    ):
        assert stats.dtype == normalised.dtype == torch.bfloat16
    names = [func.overloadpacket for func, _, _ in done.calls]
    there = (
        aten.batch_norm_stats, c10d._allgather_base_,
        aten.batch_norm_gather_stats_with_counts, aten.batch_norm_elemt,
    )  # fmt: skip
    back = aten.batch_norm_backward_reduce, c10d.allreduce_, aten.batch_norm_backward_elemt
    assert [name for name in names if name in {*there, *back}] == [*18 * there, *18 * back]
    assert aten.full not in names  # it would be a launch for each layer
    sent = {args[1].numel() for args, _ in done.of(c10d._allgather_base_.default)}
    assert sent == {2 * channels + 1 for channels in (2, 4, 8, 16, 32)}


def test_a_forward_pass_stays_on_the_gpu(fake_gpus: World) -> None:
    with torch.device("cuda"):
        out = mixed_network(fake_gpus)(torch.randn(2, 3, 32, 48, dtype=torch.bfloat16))
    assert out.device.type == "cuda" and isinstance(out, fake_tensor.FakeTensor)


@pytest.mark.usefixtures("fake_gpus")
def test_torch_s_own_layer_waits_and_is_noticed() -> None:
    with torch.device("cuda"), pytest.raises(fake_tensor.DynamicOutputShapeException):
        nn.SyncBatchNorm(2)(torch.randn(2, 2, 3, 4))


def test_layers_of_gpus_keep_activations_averages_and_names() -> None:
    world = World(size=2, device=torch.device("cuda"))
    norm = BatchNormAct2d(4, act_layer=nn.SiLU)
    images, names = torch.randn(3, 4, 5, 6), list(norm.state_dict())
    with reference_kernels():
        acting = synchronise_batchnorm(nn.Sequential(norm), world)[0]
        assert isinstance(acting, GpuSyncBatchNorm2d) and list(acting.state_dict()) == names
        norm.running_mean, norm.running_var, norm.num_batches_tracked = (
            buffer.clone() for buffer in norm.buffers()
        )
        torch.testing.assert_close(acting(images), norm(images))
        torch.testing.assert_close(acting.state_dict(), norm.state_dict())
        torch.testing.assert_close(acting.eval()(images), norm.eval()(images))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_on_gpus(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    features = (100 + torch.randn(8, 3, 16, 16)).to(dtype).requires_grad_()
    exact = features.detach().float().requires_grad_()
    norm, plain = GpuSyncBatchNorm2d(3, track_running_stats=False), nn.BatchNorm2d(3)
    with reference_kernels():
        out = norm(features)
        out.square().sum().backward()
    expected = plain(exact)
    expected.square().sum().backward()
    assert out.dtype == features.grad.dtype == dtype and norm.weight.grad.dtype == torch.float32
    torch.testing.assert_close(out.float(), expected, atol=0.02, rtol=0.02)
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad, atol=1, rtol=0.01)
