"""Parts that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unet_ddp.plugins.built_in.parts import Parts

if TYPE_CHECKING:
    from torch import Tensor, nn

    from unet_ddp.config import OptimizationConfig, TrainConfig
    from unet_ddp.runs.plan import RunBuilder
    from unet_ddp.runs.writers import RunInfo
    from unet_ddp.training.losses import Batch, Term

    Planner = Callable[[TrainConfig, RunBuilder], dict[str, Any]]
    MakeTerm = Callable[[OptimizationConfig], Term]
    MakeFactors = Callable[[OptimizationConfig], Callable[[Batch], Tensor]]
    MakeNetwork = Callable[..., nn.Module]
    MakeCallback = Callable[[RunInfo], Any]


def _batch_size() -> Planner:
    from unet_ddp.extras.planners.batch_size import plan

    return plan


def _learning_rate() -> Planner:
    from unet_ddp.extras.planners.learning_rate import plan

    return plan


def _budget() -> Planner:
    from unet_ddp.extras.planners.budget import plan

    return plan


PLANNERS: Parts[Planner] = {
    "batch_size": _batch_size,
    "learning_rate": _learning_rate,
    "budget": _budget,
}
"""Before the first step, by the setting: returns the settings it replaces."""


def _dice() -> MakeTerm:
    from unet_ddp.training.losses import Dice

    return Dice


def _ce() -> MakeTerm:
    from unet_ddp.training.losses import CrossEntropy

    return CrossEntropy


def _tversky() -> MakeTerm:
    from unet_ddp.extras.losses.terms import Tversky

    return Tversky


def _lovasz() -> MakeTerm:
    from unet_ddp.extras.losses.terms import Lovasz

    return Lovasz


def _focal() -> MakeTerm:
    from unet_ddp.extras.losses.terms import Focal

    return Focal


LOSSES: Parts[MakeTerm] = {
    "dice": _dice,
    "ce": _ce,
    "tversky": _tversky,
    "lovasz": _lovasz,
    "focal": _focal,
}
"""By the words of --loss, as in dice+focal."""


def _unet() -> MakeNetwork:
    from unet_ddp.network.unet import UNet

    return UNet


def _smp() -> MakeNetwork:
    from unet_ddp.extras.smp.networks import build

    return build


NETWORKS: Parts[MakeNetwork] = {
    "unet": _unet,
    "smp": _smp,
}
"""By --model: (channels, classes, **the settings that are its parameters)."""


def _boundary_weight() -> MakeFactors:
    from unet_ddp.extras.losses.factors import BoundaryWeight

    return BoundaryWeight


def _hard_pixels() -> MakeFactors:
    from unet_ddp.extras.losses.factors import HardPixels

    return HardPixels


PIXEL_FACTORS: Parts[MakeFactors] = {
    "boundary_weight": _boundary_weight,
    "hard_pixels": _hard_pixels,
}
"""For a loss of pixels, by the setting: factors (N, H, W) of a batch."""


def _wandb() -> MakeCallback:
    from unet_ddp.extras.wandb.writer import WandbWriter

    return WandbWriter


def _mlflow() -> MakeCallback:
    from unet_ddp.extras.mlflow.writer import MlflowWriter

    return MlflowWriter


def _profile() -> MakeCallback:
    from unet_ddp.extras.diagnose.profiling import StepProfile

    return StepProfile


CALLBACKS: Parts[MakeCallback] = {
    "wandb": _wandb,
    "mlflow": _mlflow,
    "profile": _profile,
}
"""When the log begins, by the setting, on rank 0; runs/writers.py says which methods it may have."""
