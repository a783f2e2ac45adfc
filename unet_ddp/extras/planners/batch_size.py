"""``--batch-size auto``: halve the batch until it fits into the memory of every rank."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from unet_ddp.config import TrainConfig
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import cudnn_autotuning, free_memory, is_out_of_memory
from unet_ddp.distributed.out_of_memory import describe_shortage
from unet_ddp.distributed.world import World, local_only
from unet_ddp.errors import RunError, count_of
from unet_ddp.network.architecture import Architecture, build_network, freeze_encoder
from unet_ddp.network.precision import Precision
from unet_ddp.runs.plan import RunBuilder
from unet_ddp.training.losses import SegmentationLoss
from unet_ddp.training.step import forward

# Of a GPU: DDP's buckets, synchronised batch norm, fragmentation.
_MARGIN, _SMALLEST_MARGIN = 0.05, 1 << 30
# Peak of a CPU step over what its backward pass keeps of the images: at most 1.2 when tried, 3.7
# with --checkpointing.
_PEAK, _PEAK_CHECKPOINTING = 1.5, 4.0


USUAL_STEP = 16  # images per optimizer step


def plan(config: TrainConfig, builder: RunBuilder) -> dict[str, Any]:
    """Return the batch of each process, and how often it is accumulated.

    A resumed run keeps its batch if that fits: its batch statistics depend on it. A step takes no more
    images than there are to train on, unless --images-per-step asks for more.
    """
    options, size = config.optimization, builder.world.size
    spec, data, start = builder.spec, builder.data, builder.start
    probe = BatchSizeProbe(
        spec.architecture,
        spec.preprocessing,
        spec.loss,
        spec.precision,
        data.crop_size or data.smallest,
        checkpointing=config.network.checkpointing,
        has_average=options.ema > 0,
        frozen=options.freeze,
    )
    usual = max(size, min(USUAL_STEP, len(data.split.training)) // size * size)
    images = options.images_per_step or usual
    share = images // size
    keeps = not start.is_new and share % options.accumulate == 0
    largest = share // options.accumulate if keeps else share
    batch_size = find_batch_size(probe, builder.world, share, start=largest)
    accumulate = share // batch_size
    each = count_of(size, "process")
    note = f"batch size auto: {count_of(batch_size, 'image')} at once on each of {each}"
    if accumulate > 1:
        note += (
            f", {accumulate} times per step for {images}; batch statistics and Dice are those of "
            f"{batch_size * size} images"
        )
    start.notes.append(note)
    return {"batch_size": batch_size, "accumulate": accumulate, "images_per_step": None}


@dataclass(frozen=True)
class BatchSizeProbe:
    """Tries batches on one process, with a network like the run's.

    It uses no collective: a rank may run out of memory where another does not.
    """

    architecture: Architecture
    preprocessing: Preprocessing
    loss: SegmentationLoss
    precision: Precision
    size: tuple[int, int]  # (height, width) of the images
    checkpointing: bool = False
    has_average: bool = False  # the run keeps a moving average of the weights
    frozen: str = "none"  # the part of the network that is not trained: none or encoder
    most_elements: int = 2**31 - 1  # of a tensor: beyond, kernels are slower, or missing

    def find_largest(self, share: int, *, start: int, processes: int) -> tuple[int, str]:
        """Return the largest batch that fits of `start`, its half and so on, or 0 and the reason.

        Torch's random generators are as before, and the memory is freed.

        Args:
            share: images of this process in one step of the optimizer; batches divide it.
            start: the largest batch to try.
            processes: processes that share this machine's memory, if the device is its CPU.
        """
        batch, reason, device = start, "", self.precision.device
        with local_only(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            while batch > 0:
                try:
                    if self._has_room(batch, processes):
                        self.compute_gradients(batch)
                        return batch, ""
                    reason = f"not enough memory for {count_of(batch, 'image')} at once"
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    reason = describe_shortage(error)
                finally:  # the error's frames, which hold the tensors, are gone by now
                    gc.collect()
                    torch.cuda.empty_cache()
                batch = next((n for n in range(batch // 2, 0, -1) if share % n == 0), 0)
        return 0, reason

    def compute_gradients(self, batch: int, *, batches: int = 2) -> None:
        """Compute the gradients of `batches` batches, with the optimizer's memory allocated."""
        device = self.precision.device
        network = build_network(self.architecture, checkpointing=self.checkpointing).to(device)
        network.train()
        if self.frozen == "encoder":
            freeze_encoder(network)
        copies = 3 if self.has_average else 2  # the optimizer's two moments, and the average
        held = [torch.zeros_like(p) for p in network.parameters() for _ in range(copies)]
        if device.type == "cuda":
            held.append(torch.empty(spare_memory(device), dtype=torch.uint8, device=device))
        shape = (batch, *self.size, self.preprocessing.channels)
        images = torch.zeros(shape, dtype=torch.uint8)  # (N, H, W, C)
        masks = images[..., 0].clone()
        with cudnn_autotuning():  # as in training: what it tries takes memory
            for _ in range(batches):
                with self.precision.autocast():
                    logits = forward(network, self.preprocessing, images.to(device))
                self.precision.scaler.scale(self.loss(logits, masks.to(device)).total).backward()

    def _has_room(self, batch: int, processes: int) -> bool:
        """Return whether tensors are small enough, and a CPU has the memory: its system would kill."""
        device = self.precision.device
        if batch == 1:
            return True
        if batch * self._elements_per_image > self.most_elements:
            return False
        if device.type != "cpu":
            return True
        peak = _PEAK_CHECKPOINTING if self.checkpointing else _PEAK
        return batch * self.saved_per_image * peak <= free_memory(device) / processes

    @cached_property
    def _elements_per_image(self) -> int:
        """Elements of the largest tensor that the network makes of one image."""
        device, largest = self.precision.device, 0

        def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            nonlocal largest
            tensors = [one for one in (*inputs, output) if isinstance(one, Tensor)]
            largest = max([largest, *(tensor.numel() for tensor in tensors)])

        network = build_network(self.architecture).to(device)
        network.eval()  # a user's own may return nothing
        for module in network.modules():
            module.register_forward_hook(note)
        shape = (1, *self.size, self.preprocessing.channels)
        images = torch.zeros(shape, dtype=torch.uint8, device=device)  # (1, H, W, C)
        with torch.no_grad(), self.precision.autocast():
            forward(network, self.preprocessing, images)
        return largest

    @cached_property
    def saved_per_image(self) -> int:
        """Bytes that a step keeps of one image for its backward pass."""
        with counting_saved_bytes() as saved:
            self.compute_gradients(1, batches=1)
        return sum(saved.values())


def spare_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that a probe leaves free."""
    total = torch.cuda.get_device_properties(device).total_memory
    return max(int(_MARGIN * total), _SMALLEST_MARGIN)


def find_batch_size(probe: BatchSizeProbe, world: World, share: int, *, start: int) -> int:
    """Return the largest batch that fits on every rank; see `BatchSizeProbe.find_largest`.

    Raises:
        RunError: not one image fits on a rank.
    """
    world.connect()  # what a GPU has for that is no longer free
    found = world.gather(probe.find_largest(share, start=start, processes=world.local_size))
    batch, reason = min(found)
    if batch == 0:
        raise RunError(
            f"--batch-size auto: not one image fits into the memory of rank "
            f"{found.index((batch, reason))} of {world.size}: {reason}; use --crop-size, a smaller "
            "--scale or --width, or --checkpointing"
        )
    return batch


@contextmanager
def counting_saved_bytes() -> Iterator[dict[int, int]]:
    """Yield the bytes that autograd saves for the backward pass, by their address.

    By address, as several operations save the same memory.
    """
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        yield saved
