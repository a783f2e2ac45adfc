"""An output: the share of each class, a file for each image and one for all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unet_ddp.files import write_text
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.prediction import Prediction


class Shares(Output):
    """Counts the pixels of each class."""

    path = Path("shares.json")
    header, separator, footer = "[", ",", "]\n"

    def files(self, image: ImageFiles) -> Sequence[Path]:
        """Return the file of an image."""
        return [image.named("_shares.json")]

    def write(self, image: ImageFiles, prediction: Prediction) -> None:
        """Write it."""
        write_text(self.files(image)[0], self.record(image, prediction))

    def record(self, image: ImageFiles, prediction: Prediction) -> str:
        """Return what the file of all images says of this one."""
        counts = np.bincount(prediction.ids.ravel(), minlength=self.labels.num_classes)
        return json.dumps({"image": image.image.name, "pixels": counts.tolist()})
