"""An evaluation worked out by hand, and a network whose predictions can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pair, Pairs
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.evaluation.boundary import BoundaryCounts
from unet_ddp.evaluation.results import Evaluation, ImageRecord
from unet_ddp.metrics.counts import BINS
from unet_ddp.prediction.backends import LoadedModel, TorchBackend
from unet_ddp.prediction.predictor import Predictor

CPU = torch.device("cpu")
CENTRES = (-1.0, 1.0, 0.0, 0.5)  # of the classes' greys: black, white, then what lies between


class Grey(torch.nn.Module):
    """Logits (N, classes, H, W) by the distance of a pixel's grey, from -1 to 1, to the centres."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.tensor(CENTRES[:classes]).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return -((images - self.centres) ** 2)


def grey_predictor(labels: Labels, *, scale: float = 1.0, nodata: float | None = None) -> Predictor:
    pixels = Preprocessing(1, (0.5,), (0.5,), scale, nodata=nodata)
    if nodata is not None:
        pixels = Preprocessing(1, (0.5,), (0.5,), scale, "float32", 0.0, 1.0, nodata)
    backend = TorchBackend(Grey(labels.num_classes), pixels, CPU, fold=False)
    return Predictor([LoadedModel(backend, labels, pixels, None, [])], device=CPU)


def write_pairs(folder: Path, **pictures: tuple[np.ndarray, np.ndarray]) -> Pairs:
    """Write (image, mask) arrays as PNGs; return their pairs in the order given."""
    pairs = []
    for name, arrays in pictures.items():
        paths = [folder / f"{name}_{kind}.png" for kind in ("image", "mask")]
        for path, array in zip(paths, arrays, strict=True):
            Image.fromarray(array.astype(np.uint8)).save(path)
        pairs.append(Pair(name, *paths))
    return Pairs(pairs)


def example_evaluation(
    labels: Labels | None = None, *, threshold: float | None = 0.25
) -> Evaluation:
    """Two images of two classes: `a` with 12 pixels, `b` with 4 of the background, all right.

    Of the foreground, hits 3, truth 4, predicted 5: Dice 6/9, IoU 3/6, precision 3/5, recall 3/4.
    """
    histogram = np.zeros((2, BINS), np.int64)
    histogram[0, 0], histogram[0, 256] = 10, 2  # background: 10 pixels at p = 0, 2 at 1/4
    histogram[1, 128], histogram[1, 768] = 1, 3  # foreground: one at 1/8, 3 at 3/4
    outline = BoundaryCounts(truth=4, truth_matched=2, predicted=5, predicted_matched=5)
    records = [
        ImageRecord("a", 0, np.array([[6, 2], [1, 3]]), [BoundaryCounts(), outline]),
        ImageRecord("b", 1, np.array([[4, 0], [0, 0]]), [BoundaryCounts(), BoundaryCounts()]),
    ]
    as_trained = np.array([[3, 0], [1, 2]])
    labels = labels or Labels((0, 255))
    return Evaluation(labels, records, histogram, as_trained, threshold, None, True)
