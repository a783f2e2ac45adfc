"""The head of numbered objects: softmax over background, bodies and border."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from unet_ddp.data.labels import Labels
from unet_ddp.errors import check_installed
from unet_ddp.heads import Softmax, Tuner

if TYPE_CHECKING:
    from unet_ddp.config import OptimizationConfig
    from unet_ddp.data.dataset import PreparedData
    from unet_ddp.distributed.world import World
    from unet_ddp.training.losses import SegmentationLoss

_BOUNDARY_WEIGHT = 5.0


class ObjectSoftmax(Softmax):
    """Softmax whose loss keeps objects apart: unless --boundary-weight says otherwise, borders weigh more."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        check_installed("skimage", "objects", "a network for objects")

    def make_loss(self, options: OptimizationConfig) -> SegmentationLoss:
        """Return the loss of a run with these settings."""
        if options.boundary_weight is None:
            options = replace(options, boundary_weight=_BOUNDARY_WEIGHT)
        return super().make_loss(options)

    def tuner(self, data: PreparedData, world: World, *, resize_masks: bool) -> Tuner:
        """Return what chooses `ObjectLabels.separation` on the validation images."""
        from unet_ddp.extras.objects.tuning import SeparationTuner  # it imports the prediction

        return SeparationTuner(data, world, resize_masks=resize_masks)
