"""Jobs of the tests' ranks; module-level, so that other processes can find them."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.batchnorm_kernels import reference_kernels
from tests.tiny import make_loss
from unet_ddp.data.dataset import Sample
from unet_ddp.data.masks import IGNORE_ID
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.samplers import ScoringSampler
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.launch import run_on_all_ranks
from unet_ddp.distributed.replica import replicate
from unet_ddp.distributed.world import World, separate_statistics, sum_over_ranks
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import (
    build_network,
    choose_architecture,
    freeze_encoder,
    parameter_groups,
)
from unet_ddp.network.precision import Precision
from unet_ddp.network.sync_batchnorm import synchronise_batchnorm
from unet_ddp.plugins import is_own
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.prefetch import copy_to_device
from unet_ddp.training.state import AdamW, Schedule, TrainState
from unet_ddp.training.step import train_steps
from unet_ddp.training.validation import count_pixels

GLOBAL_BATCH = 8
PIXELS = Preprocessing.for_images(3, 255, scale=1.0)


def fixed_sample(index: int, side: int = 32) -> Sample:
    """Image `index` of a made-up set, with anything from none to all of its pixels ignored."""
    random_ = np.random.default_rng([77, index])
    image = random_.integers(0, 256, (side, side, 3), dtype=np.uint8)
    mask = (image.mean(axis=2) > 127).astype(np.uint8) + (image[..., 0] > 200).astype(np.uint8)
    ignored = (index % GLOBAL_BATCH) * side // (GLOBAL_BATCH - 1)  # rows: 0 … all
    mask[:ignored] = IGNORE_ID
    return Sample(torch.from_numpy(image), torch.from_numpy(mask), torch.tensor(index))


def stack(samples: list[Sample]) -> Sample:
    return Sample(*(torch.stack(parts) for parts in zip(*samples, strict=True)))


def new_state(
    world: World,
    model: str = "unet",
    encoder: str | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    side: int = 64,
    steps: int = 1,
    loss: SegmentationLoss | None = None,
    rate: float = 1e-3,
    checkpointing: bool = False,
    frozen: bool = False,
    encoder_rate: float = 1.0,
    local_norms: bool = False,
) -> TrainState:
    """A run of one epoch of `steps` steps, at its start."""
    torch.manual_seed(5)
    architecture = choose_architecture(model, encoder, channels=3, num_classes=3, width=4)
    network = build_network(architecture, checkpointing=checkpointing).to(world.device, dtype)
    if not local_norms:
        network = synchronise_batchnorm(network, world)
    parts = freeze_encoder(network) if frozen else []
    example = torch.zeros(2, 3, side, side, dtype=dtype, device=world.device)
    return TrainState(
        network=network,
        replica=replicate(network, example, world, may_skip=is_own("networks", model)),
        optimizer=AdamW(parameter_groups(network, encoder_rate), lr=rate, fused=True),
        precision=Precision(world.device, "float32"),
        loss=(loss or SegmentationLoss()).to(world.device),
        preprocess=PIXELS,
        schedule=Schedule(rate, steps),
        steps_per_epoch=steps,
        frozen=parts,
        has_local_norms=local_norms and world.size > 1,
    )


def weights_after(
    model: str,
    encoder: str | None,
    accumulate: int = 1,
    steps: int = 20,
    device: str = "cpu",
    **how: Any,
) -> dict[str, np.ndarray]:
    """Weights after `steps` steps in float64, on a world of any size, joined by gloo."""
    world = replace(join("cpu", 60), device=torch.device(device))
    state = new_state(
        world,
        model,
        encoder,
        dtype=torch.float64,
        steps=steps,
        loss=make_loss(class_weights=(0.5, 1.0, 2.0)),
        **how,
    )
    mine = GLOBAL_BATCH // world.size // accumulate
    batches = (
        copy_to_device(
            stack([fixed_sample(first + world.rank + n * world.size) for n in range(mine)]),
            world.device,
        )
        for first in range(0, steps * GLOBAL_BATCH, GLOBAL_BATCH // accumulate)
    )
    reports = train_steps(state, batches, accumulate=accumulate, clip=1.0)
    losses = [report.losses[0].item() for report in reports]
    weights = {k: v.double().cpu().numpy().copy() for k, v in state.network.state_dict().items()}
    weights["losses"] = np.array(losses)
    del state, reports
    gc.collect()
    leave(world)
    return weights


def loss_gradients(cases: list[dict[str, Any]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each loss, its values and the gradient of a 1x1 convolution's weights, in float64.

    Four images are shared out, the last without a valid pixel; their sums differ by orders of size.
    """
    world = join("cpu", 60)
    mine = [0, 3, 5, 7][world.rank :: world.size]  # by their rows that are ignored, of 7
    images, masks, _ = stack([fixed_sample(index) for index in mine])
    scale = torch.tensor(mine, dtype=torch.float64).exp().view(-1, 1, 1, 1) / 255
    images = images.permute(0, 3, 1, 2) * scale
    found = []
    for options in cases:
        weights = torch.linspace(-2, 3, 9, dtype=torch.float64).view(3, 3).requires_grad_()
        losses = make_loss(**options)(torch.einsum("ck,nkhw->nchw", weights, images), masks)
        losses.total.backward()
        assert weights.grad is not None
        mean = sum_over_ranks(weights.grad) / world.size  # as DDP takes it
        found.append((torch.stack([part.detach() for part in losses]).numpy(), mean.numpy()))
    leave(world)
    return found


def use_all_instructions() -> None:
    """Undo what `pytest_configure` sets, in a process that has computed nothing yet."""
    os.environ.pop("ONEDNN_MAX_CPU_ISA", None)


def count_shards(counts: list[int], precision: str = "auto") -> list[tuple[np.ndarray, np.ndarray]]:
    """For each of `counts`, confusion matrix and histogram of so many images, shared out."""
    world = join("cpu", 60)
    state = new_state(world)
    state.precision = Precision(world.device, precision)
    totals = []
    for count in counts:
        share = ScoringSampler(count, rank=world.rank, size=world.size)
        batches = [stack([fixed_sample(index)]) for _, index in share]
        found = count_pixels(state, batches, num_classes=3).over_ranks()
        totals.append((found.confusion.numpy(), found.histogram.numpy()))
    del state
    gc.collect()
    leave(world)
    return totals


def object_scores(folder: str, *names: str) -> dict[str, Any]:
    """The separation found for drawn ellipses by their grey alone, and the scores of objects."""
    from tests.evaluation.examples import grey_predictor
    from unet_ddp.data.matching import find_pairs
    from unet_ddp.evaluation.dataset import EvaluationDataset, fetch
    from unet_ddp.evaluation.scoring import score_pairs
    from unet_ddp.evaluation.tables import summary
    from unet_ddp.extras.objects.labels import ObjectLabels
    from unet_ddp.extras.objects.tuning import choose_separation

    world = join("cpu", 60)
    separation = (0.5, 0.4 if len(names) == 1 else 0.6)  # the classes' greys are closer
    predictor = grey_predictor(replace(ObjectLabels.of(names), separation=separation))
    pairs = find_pairs(Path(folder, "imgs"), Path(folder, "masks"))
    dataset = EvaluationDataset(pairs, predictor, full_size=True)
    samples = fetch(dataset, world, workers=0)
    found, precision = choose_separation(predictor, samples, world)
    evaluation = score_pairs(predictor, dataset, world, threshold=None, workers=0)
    leave(world)
    scores = summary(evaluation)
    return {
        **scores["objects"],
        "found": (found.to_dict()["separation"], precision),
        "by_class": scores.get("objects_by_class"),
    }


def wait_for_main(timeout: float) -> int:
    """What the main process finds in twice the time that ranks wait for each other."""
    world = join("cpu", timeout)

    def find() -> int:
        time.sleep(2 * timeout)
        return 40 + world.rank

    found = world.on_main(find)
    leave(world)
    return found


def said_by_failing(rank: int, kind: str) -> tuple[Any, str]:
    """Status and errors of a program in which one rank fails while the others wait for it."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        run_on_all_ranks(_failing_program, (rank, kind), nproc=1, device="cpu", timeout=20)
    return end.value.code, err.getvalue()


def _failing_program(config: tuple[int, str], world: World) -> int:
    rank, kind = config
    if world.rank == rank:
        raise UserError("bad file") if kind == "mistake" else RuntimeError("broken code")
    sum_over_ranks(torch.ones(1))
    return 0


def compiled_gradients() -> tuple[list[float], list[float]]:
    """Gradients of a function of sums over ranks, as it is and compiled."""
    world = join("cpu", 60)
    found = []

    def loss(values: torch.Tensor) -> torch.Tensor:
        return sum_over_ranks(values * values).square().sum()

    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        values = (torch.arange(3.0) + world.rank).requires_grad_()
        function(values).backward()
        assert values.grad is not None
        found.append(values.grad.tolist())
    leave(world)
    return found[0], found[1]


def train_some(model: str, encoder: str, side: int) -> list[float]:
    """Losses of three steps of one of smp's networks."""
    world = join("cpu", 60)
    state = new_state(world, model, encoder, side=side, steps=3, rate=1e-4)
    batch = stack([fixed_sample(world.rank, side)])
    losses = [float(report.losses[0]) for report in train_steps(state, iter([batch] * 3))]
    del state
    gc.collect()
    leave(world)
    return losses


@contextlib.contextmanager
def watched_sums() -> Iterator[list[tuple[int, Any]]]:
    """The bytes and the group of each sum over ranks that is waited for; DDP's own are not."""
    seen: list[tuple[int, Any]] = []
    all_reduce = dist.all_reduce

    def watched(tensor: torch.Tensor, *, group: Any = None, **how: Any) -> Any:
        seen.append((tensor.numel() * tensor.element_size(), group))
        return all_reduce(tensor, group=group, **how)

    with mock.patch.object(dist, "all_reduce", watched):
        yield seen


def sums_of_a_step(width: int) -> list[int]:
    """Bytes of each sum over ranks that a step of train.py waits for."""
    from benchmarks.ranks import new_state as new_bare_state

    world = join("cpu", 60)
    state = new_bare_state(world, width, 2)
    image = torch.zeros(2, 32, 32, 3, dtype=torch.uint8)
    with watched_sums() as seen:
        next(train_steps(state, iter([Sample(image, image[..., 0], torch.arange(2))])))
    del state
    gc.collect()
    leave(world)
    return [size for size, _ in seen]


def groups_of_sums(is_separate: bool) -> tuple[list[str], list[float]]:
    """The group of each sum that a step of a copied network waits for, and the losses of two steps."""
    world = join("cpu", 60)
    own = dist.new_group()
    separate_statistics(own if is_separate else None)
    state = new_state(world, dtype=torch.float64, steps=2)
    copy.deepcopy(state.network)  # as the average is made
    batch = stack([fixed_sample(world.rank)])
    with watched_sums() as seen:
        losses = [float(report.losses[0]) for report in train_steps(state, iter([batch] * 2))]
    names = {own: "own", None: "all"}
    del state
    gc.collect()
    leave(world)
    separate_statistics(None)
    return [names.get(group, "another") for _, group in seen], losses


def batch_norm_of_shares(
    device: str, shares: list[int], layout: str, affine: bool
) -> dict[str, Any]:
    """A layer's output and gradients for this rank's share of seven images, and its averages.

    A GPU's layer computes here with the formulas of its kernels.
    """
    world = replace(join("cpu", 60), device=torch.device(device))
    norm = nn.BatchNorm2d(5, eps=0.01, momentum=0.3, affine=affine).double()
    images, factors = draw_images(norm)
    norm = synchronise_batchnorm(nn.Sequential(norm), world)[0]
    copied = copy.deepcopy(norm)
    first = sum(shares[: world.rank])
    mine = slice(first, first + shares[world.rank])
    values = images[mine].contiguous(memory_format=getattr(torch, layout)).requires_grad_()
    with reference_kernels():
        for _ in range(3):
            out = norm(values)
        (out * factors[mine]).sum().backward()
        assert torch.equal(copied(values), out)
        before = norm.running_mean.clone()
        norm.eval()(values)
    assert torch.equal(norm.running_mean, before)
    leave(world)
    found = {"out": out, "grad": values.grad, **norm.state_dict()}
    found |= {f"grad of {name}": p.grad / world.size for name, p in norm.named_parameters()}
    return {"kind": type(norm).__name__} | {k: v.detach().numpy() for k, v in found.items()}


def draw_images(norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Seven images and factors of their outputs, the same on every rank; draws the parameters."""
    torch.manual_seed(11)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    images, factors = torch.randn(2, 7, 5, 4, 6, dtype=torch.float64)
    return 3 + 2 * images, factors
