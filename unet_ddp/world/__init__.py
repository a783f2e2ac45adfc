"""The processes of a run: who I am, which device is mine, what we sum, how we stop and fail.

The only package that imports torch.distributed and torch.nn.parallel. A world of one that was
started as plain ``python train.py`` has no process group; everything here is then the
identity, and no caller has to know.
"""

from __future__ import annotations

from unet_ddp.world.group import World, alone, sum_over_ranks, without_sync
from unet_ddp.world.joining import join, leave, pick_device
from unet_ddp.world.launch import fail_early, tell
from unet_ddp.world.preemption import TROUBLE, Preemption

__all__ = [
    "TROUBLE",
    "Preemption",
    "World",
    "alone",
    "fail_early",
    "join",
    "leave",
    "pick_device",
    "sum_over_ranks",
    "tell",
    "without_sync",
]
