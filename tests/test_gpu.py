"""Tests that only a GPU can run: pytest -m gpu."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.jobs import PIXELS, fixed_sample, stack, weights_after
from tests.ranks import TORCHRUN, TRAIN, Ranks, python
from tests.test_programs import FLAGS
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.data.dataset import Sample
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.distributed.world import World
from unet_ddp.metrics.counts import Counts
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.network.sync_batchnorm import GpuSyncBatchNorm2d, synchronise_batchnorm
from unet_ddp.network.unet import UNet
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.prefetch import Prefetcher
from unet_ddp.training.state import Schedule, TrainState
from unet_ddp.training.step import StepReport, train_steps
from unet_ddp.training.tensors import WeightAverage

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")


def gpu_state(dtype: str, *, steps: int, rate: float = 1e-2) -> TrainState:
    torch.manual_seed(0)
    network = UNet(3, 3, width=8).to(GPU)
    return TrainState(
        network,
        network,
        torch.optim.AdamW(network.parameters(), fused=True),
        Precision(GPU, dtype),
        SegmentationLoss().to(GPU),
        PIXELS,
        Schedule(rate, steps),
        steps_per_epoch=steps,
        average=WeightAverage(network, 0.9),
    )


@contextmanager
def refusing_to_wait() -> Iterator[None]:
    """Raise an error where the host waits for the GPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def refuse(error: Exception) -> None:
    raise error


def fetch(batches: list[Sample]) -> Prefetcher:
    return Prefetcher(batches, ahead=2, device=GPU, on_error=refuse)


def train(state: TrainState, batch: Sample, **how: Any) -> list[StepReport]:
    batches = [batch] * state.steps_per_epoch * how.get("accumulate", 1)
    return list(train_steps(state, fetch(batches), **how))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_learns(dtype: str) -> None:
    state = gpu_state(dtype, steps=100)
    reports = train(state, stack([fixed_sample(0), fixed_sample(1)]), clip=1.0)
    assert float(reports[-1].losses[0]) < float(reports[0].losses[0]) / 2
    assert state.precision.scaler.is_enabled() == (dtype == "float16")


def test_the_scaler_survives_a_resume() -> None:
    state, again = gpu_state("float16", steps=3), gpu_state("float16", steps=3)
    train(state, stack([fixed_sample(0)]))
    state.precision.scaler.update(512.0)
    again.load_state_dict(state.state_dict())
    assert again.precision.scaler.get_scale() == 512.0


def test_batch_norm_over_ranks_and_fused_activations() -> None:
    world = World(size=2, device=torch.device("cuda"))
    classic = synchronise_batchnorm(UNet(3, 2, width=2), world)
    assert sum(isinstance(m, GpuSyncBatchNorm2d) for m in classic.modules()) == 18
    architecture = choose_architecture("unet", "tu-efficientnet_b0", channels=3, num_classes=2)
    network = build_network(architecture).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        before = network(images)
        after = synchronise_batchnorm(network, world).eval()(images)
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_over_ranks_computes_what_torch_s_does(dtype: torch.dtype, layout: Any) -> None:
    """On one rank, with torch's kernels instead of the formulas that CPUs have for them."""
    torch.manual_seed(0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    ours, plain = (kind(5).to(GPU, wide) for kind in (GpuSyncBatchNorm2d, torch.nn.BatchNorm2d))
    values = torch.randn(3, 5, 16, 16, dtype=dtype, device=GPU).to(memory_format=layout)
    found = []
    with refusing_to_wait():
        for norm in (ours, plain):
            images = values.clone().requires_grad_()
            out = norm(images)
            (out.square() * values).sum().backward()
            found.append([out, images.grad, norm.weight.grad, *norm.buffers()])
    close: dict[str, Any] = {} if wide == dtype else {"rtol": 0.02, "atol": 0.02}
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, **close)


@pytest.mark.parametrize("more", [[], ["--compile"]])
def test_nccl_world_of_one_trains_and_resumes(tmp_path: Path, more: list[str]) -> None:
    make_set(tmp_path, 10)
    one = [*TORCHRUN[:-1], "--nproc_per_node=1", TRAIN]
    done = python(tmp_path, *one, *data_flags(tmp_path), *FLAGS, "--stop-after", "3", *more)
    assert done.returncode == 0, done.stderr
    assert "cuda, bfloat16" in done.stdout
    assert python(tmp_path, *one, "--resume").returncode == 0
    assert checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"]["epoch"] == 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_ranks_on_one_gpu_train_what_one_does(ranks: Ranks, checkpointing: bool) -> None:
    """By gloo, as NCCL shares no GPU: batch norm over ranks, the loss, DDP's gradients."""
    train_on_gpu = partial(weights_after, "unet", None, 1, 5, "cuda", checkpointing=checkpointing)
    (one,) = ranks.run(1, train_on_gpu)
    for found in ranks.run(2, train_on_gpu):
        assert found.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


def test_counting_waits_for_nothing() -> None:
    """Scores of a batch are counted without the host looking at the GPU."""
    for classes in (2, 5):
        logits = torch.randn(1, classes, 64, 64)
        masks = torch.randint(0, classes, (1, 64, 64), dtype=torch.uint8)
        masks[:, :5] = IGNORE_ID
        expected = Counts.of(logits, masks)
        moved, total = (logits.cuda(), masks.cuda()), Counts.zeros(classes, GPU)
        total.add(Counts.of(*moved))
        with refusing_to_wait():
            total.add(Counts.of(*moved))
        assert torch.equal(total.confusion.cpu(), 2 * expected.confusion)
        assert total.histogram.sum().item() == 2 * expected.histogram.sum().item()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_waits_for_nothing(dtype: str, accumulate: int) -> None:
    """From the copy of the batch to the update, the host never waits for the GPU."""
    state = gpu_state(dtype, steps=6, rate=1e-3)
    batch = Sample(*(part.pin_memory() for part in stack([fixed_sample(0), fixed_sample(1)])))
    batches = fetch([batch] * 6 * accumulate)
    reports = train_steps(state, batches, accumulate=accumulate, clip=1.0)
    next(reports), next(reports)  # libraries start, constants are copied
    with refusing_to_wait():
        left = list(reports)
    assert len(left) == 4
    assert all(bool(report.is_finite) for report in left)


def test_batches_that_are_copied_ahead_are_the_same() -> None:
    """Copied on a stream of their own while the one before is computed on."""
    batches = [stack([fixed_sample(n, 512)]) for n in range(12)]
    pinned = [Sample(*(part.pin_memory() for part in batch)) for batch in batches]
    busy = torch.randn(4096, 4096, device=GPU)
    for batch, moved in zip(batches, fetch(pinned), strict=True):
        busy = (busy @ busy).clamp(-1, 1)  # work that is still going on when the next is copied
        assert torch.equal(moved.image.cpu(), batch.image)
        assert torch.equal(moved.mask.cpu(), batch.mask)
