"""What a training step takes in memory and time, from a trial on smaller images."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from unet_ddp.config import TrainConfig
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.network.precision import Precision
from unet_ddp.training.losses import DiceCrossEntropy

_SIDE, _BATCH, _TRIALS = 192, 2, 2


@dataclass(frozen=True)
class Cost:
    """Of one step with one batch."""

    parameters: int
    bytes: int
    """Weights, gradients, the optimizer's moments, and what autograd keeps for the backward pass."""
    seconds: float
    device: str


def estimate_cost(
    config: TrainConfig,
    *,
    channels: int,
    num_classes: int,
    size: tuple[int, int],
    device: torch.device,
) -> Cost:
    """The cost of a step of the network that `config` names, on images of `size` (height, width).

    A convolution's work and memory grow with the pixels, so a trial on small images tells. What is
    the network's alone, four numbers for each weight, is added.

    Raises:
        UserError: there is no such network.
    """
    network_config = config.network
    architecture = choose_architecture(
        network_config.model,
        network_config.encoder,
        channels=channels,
        num_classes=num_classes,
        width=network_config.width,
        bilinear=network_config.bilinear,
    )
    network = build_network(architecture, checkpointing=network_config.checkpointing).to(device)
    precision = Precision(device, amp=config.optimization.amp, dtype=config.optimization.amp_dtype)
    height, width = (max(32, min(side, _SIDE) // 32 * 32) for side in size)
    images = torch.randn(_BATCH, channels, height, width, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    masks = torch.randint(0, num_classes, (_BATCH, height, width), device=device)
    seconds, kept = _try_out(network, images, masks, precision)
    share = config.optimization.images_at_once * size[0] * size[1] / (_BATCH * height * width)
    count = sum(parameter.numel() for parameter in network.parameters())
    return Cost(count, round(16 * count + kept * share), seconds * share, device.type)


def _try_out(
    network: nn.Module, images: Tensor, masks: Tensor, precision: Precision
) -> tuple[float, int]:
    """Seconds of the quickest of some steps, and the bytes that one keeps for its backward pass."""
    loss, seconds = DiceCrossEntropy().to(precision.device), []
    for _ in range(_TRIALS + 1):
        began = time.perf_counter()
        with counting_kept() as kept:
            with precision.autocast():
                logits = network(images)
            total = loss(logits, masks).total
        total.backward()
        if precision.device.type == "cuda":
            torch.cuda.synchronize(precision.device)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:]), sum(kept.values())  # the first one also warms up


@contextmanager
def counting_kept() -> Iterator[dict[int, int]]:
    """Within it, the bytes of what autograd keeps for the backward pass, by where they lie.

    By address, for several operations keep the same memory.
    """
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        yield kept
