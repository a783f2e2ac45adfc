"""Explain running out of memory in one line, with the settings that need less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from unet_ddp.config import TrainConfig
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, words_of


@contextmanager
def explain_out_of_memory(config: TrainConfig, world: World, phase: str) -> Iterator[None]:
    """Replace torch's error in building, training or validation by a RunError with what would help."""
    try:
        yield
        return
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        shortage = describe_shortage(error)
    rank = f"rank {world.rank} of {world.size}: " if world.size > 1 else ""
    device = "GPU" if world.device.type == "cuda" else "machine"
    advice = _advise(config, world, phase)
    # Without the frames of torch's, which hold tensors.
    raise RunError(f"{rank}the {device} is out of memory in {phase}: {shortage}; {advice}")


def describe_shortage(error: RuntimeError) -> str:
    """Return the amounts that torch's message names."""
    text = words_of(error)
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
    limits = re.search(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", text)
    own = re.search(r"this process has ([\d.]+ \w+) memory in use", text)
    if asked is None or limits is None:
        by_cpu = re.search(r"tried to allocate (\d+) bytes", text)
        if by_cpu is None:
            return text[:120]
        return f"tried to allocate {int(by_cpu[1]) / 2**30:.2f} GiB"
    line = f"tried to allocate {asked[1]}; {limits[2]} of {limits[1]} are free"
    if own:
        line += f", this process uses {own[1]}"
    return line


def _advise(config: TrainConfig, world: World, phase: str) -> str:
    """Return settings that need less, as a user would type them."""
    options, advice = config.optimization, []
    batch = options.batch_size
    if phase == "training" and batch != "auto" and batch > 1:
        smaller = next(n for n in range(batch - 1, 0, -1) if batch % n == 0)
        accumulate = batch // smaller * options.accumulate
        images = smaller * accumulate * world.size
        advice.append(
            f"--batch-size {smaller} --accumulate {accumulate} keeps the {images} images per step, "
            "and --batch-size auto finds the largest batch that fits"
        )
    smaller_settings = []
    is_classic = config.network.encoder is None and config.network.model == "unet"
    if phase != "validation" and is_classic and not config.network.checkpointing:
        smaller_settings.append("--checkpointing")
    if world.device.type == "cuda" and options.precision == "float32":
        smaller_settings.append("--precision auto")
    smaller_settings.append(f"in a new run a --scale below {config.data.scale:g}")
    advice.append(f"less memory is needed with {', or '.join(smaller_settings)}")
    if phase != "building":
        advice.append("continue with --resume")
    return "; ".join(advice)
