"""No masks, for --mask-format none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unet_ddp.prediction.outputs.base import ImageFiles
from unet_ddp.prediction.outputs.mask import MaskFile
from unet_ddp.prediction.prediction import Prediction


class NoMask(MaskFile):
    """No file."""

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return nothing."""
        return []

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write nothing."""
