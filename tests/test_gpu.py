"""What only a GPU can show; left out where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import data_flags, make_set
from tests.jobs import PIXELS, fixed_sample, stack
from tests.test_programs import FLAGS, TORCHRUN, TRAIN, python
from unet_ddp.data.dataset import Sample
from unet_ddp.distributed.world import World
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.network.sync_batchnorm import synchronise_batchnorm
from unet_ddp.network.unet import UNet
from unet_ddp.runs import checkpoint
from unet_ddp.training.losses import DiceCrossEntropy
from unet_ddp.training.step import Schedule, TrainState, train_epoch

pytestmark = pytest.mark.gpu


def gpu_state(dtype: str) -> TrainState:
    torch.manual_seed(0)
    device = torch.device("cuda")
    network = UNet(3, 3, width=8).to(device)
    return TrainState(
        network,
        network,
        torch.optim.AdamW(network.parameters(), fused=True),
        Precision(device, dtype=dtype),
        sums=torch.zeros(3, dtype=torch.float64, device=device),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_learns(dtype: str) -> None:
    state = gpu_state(dtype)
    batch = stack([fixed_sample(0), fixed_sample(1)])
    reports = train_epoch(
        state,
        [batch] * 100,
        DiceCrossEntropy().cuda(),
        PIXELS,
        Schedule(1e-2, 100),
        steps=100,
        clip=1.0,
    )
    losses = [float(report.losses[0]) for report in reports]
    assert losses[-1] < losses[0] / 2
    assert state.precision.scaler.is_enabled() == (dtype == "float16")


def test_the_scaler_survives_a_resume() -> None:
    state, again = gpu_state("float16"), gpu_state("float16")
    batch = stack([fixed_sample(0)])
    list(
        train_epoch(
            state, [batch] * 3, DiceCrossEntropy().cuda(), PIXELS, Schedule(1e-2, 3), steps=3
        )
    )
    state.precision.scaler.update(512.0)
    again.load_state_dict(state.state_dict())
    assert again.precision.scaler.get_scale() == 512.0


def test_torch_sync_batch_norm_and_fused_activations() -> None:
    world = World(size=2, device=torch.device("cuda"))
    classic = synchronise_batchnorm(UNet(3, 2, width=2), world)
    assert sum(isinstance(m, torch.nn.SyncBatchNorm) for m in classic.modules()) == 18
    architecture = choose_architecture("unet", "tu-efficientnet_b0", channels=3, num_classes=2)
    network = build_network(architecture).eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        before = network(images)
        after = synchronise_batchnorm(network, world).eval()(images)
    torch.testing.assert_close(before, after)


def test_nccl_world_of_one_trains_and_resumes(tmp_path: Path) -> None:
    make_set(tmp_path, 10)
    one = [*TORCHRUN[:-1], "--nproc_per_node=1", TRAIN]
    done = python(tmp_path, *one, *data_flags(tmp_path), *FLAGS, "--max-steps", "3")
    assert done.returncode == 0, done.stderr
    assert "cuda, bfloat16" in done.stdout
    assert python(tmp_path, *one, "--resume").returncode == 0
    assert checkpoint.load(tmp_path / "checkpoints" / "last.pt")["position"]["epoch"] == 2


def test_counting_waits_for_nothing() -> None:
    """Scores of a batch are counted without the host looking at the GPU."""
    from unet_ddp.data.labels import IGNORE_ID
    from unet_ddp.metrics.counts import Counts

    for classes in (2, 5):
        logits = torch.randn(1, classes, 64, 64)
        masks = torch.randint(0, classes, (1, 64, 64), dtype=torch.uint8)
        masks[:, :5] = IGNORE_ID
        expected = Counts.of(logits, masks)
        moved, total = (logits.cuda(), masks.cuda()), Counts.zeros(classes, torch.device("cuda"))
        total.add(Counts.of(*moved))
        torch.cuda.set_sync_debug_mode("error")
        try:
            total.add(Counts.of(*moved))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(total.confusion.cpu(), 2 * expected.confusion)
        assert total.histogram.sum().item() == 2 * expected.histogram.sum().item()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_waits_for_nothing(dtype: str, accumulate: int) -> None:
    """From the copy of the batch to the update, the host never waits for the GPU."""
    state, steps = gpu_state(dtype), 6
    batch = Sample(*(part.pin_memory() for part in stack([fixed_sample(0), fixed_sample(1)])))
    reports = train_epoch(
        state, [batch] * steps * accumulate, DiceCrossEntropy().cuda(), PIXELS,
        Schedule(1e-3, steps), steps=steps, accumulate=accumulate, clip=1.0,
    )  # fmt: skip
    next(reports), next(reports)  # libraries start, constants are copied
    torch.cuda.set_sync_debug_mode("error")
    try:
        left = list(reports)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(left) == steps - 2
    assert all(bool(report.is_finite) for report in left)


def test_batches_that_are_copied_ahead_are_the_same() -> None:
    """Copied on a stream of its own while the one before is computed on."""
    from unet_ddp.training.step import _moved

    device = torch.device("cuda")
    batches = [stack([fixed_sample(n, 512)]) for n in range(12)]
    pinned = [Sample(*(part.pin_memory() for part in batch)) for batch in batches]
    busy = torch.randn(4096, 4096, device=device)
    for batch, moved in zip(batches, _moved(pinned, device), strict=True):
        busy = (busy @ busy).clamp(-1, 1)  # work that is still going on when the next is copied
        assert torch.equal(moved.image.cpu(), batch.image)
        assert torch.equal(moved.mask.cpu(), batch.mask)
