"""Trained networks with all that belongs to them: from an image of any size to its mask."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from unet_ddp.data.readers.base import Pixels
from unet_ddp.data.readers.read import Source
from unet_ddp.distributed.device import (
    Turns,
    check_device,
    free_memory,
    is_out_of_memory,
    predicts_in_bfloat16,
    total_memory,
)
from unet_ddp.errors import UserError
from unet_ddp.files import as_path
from unet_ddp.heads import Scores, find_head
from unet_ddp.prediction.backends import (
    KINDS,
    LoadedModel,
    check_options,
    mean_logits,
    open_models,
    warn_of_changes,
)
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.source import SourceImage, check_images, in_memory, open_array, open_image
from unet_ddp.prediction.tiling import TiledScores, Tiling, blend

TILE, OVERLAP = 1024, 0.25
_FREE = 0.5  # of the free memory, or a GPU's, that predicting images whole may take
_TOTAL_SHARE = 1 / 8  # of all memory, that `logits` may take: there may be several processes


class Predictor:
    """One trained network, or several whose probabilities are averaged; made by `from_checkpoint`.

    Example:
        predictor = Predictor.from_checkpoint("checkpoints/best.pt", tta="mirror")
        prediction = predictor("image.jpg")  # a path, a Pillow image or an array
        print(prediction.mask.shape, predictor.labels.class_names)  # (H, W), and what 0, 1, ... mean in it
        prediction.to_image().save("mask.png")

    Attributes:
        labels: classes of the networks; `labels.class_names[k]` is the name of class id k.
        threshold: the threshold in use, 0 to 1; None: the most probable class is predicted.
        device: device of the networks.

    Args:
        models: loaded networks, of the same classes, channels and scale.
        device: device of the networks.
        tile: side of the windows, in pixels of the scaled image; None: whole images if they fit into memory.
        overlap: percentage of a window's side that its neighbours see too, 0 <= overlap < 100.
        tta: test-time augmentation: none, mirror (2 times the work), flips (4) or d4 (8).
        threshold: two classes: least probability of the second, 0 < threshold < 1; None: the checkpoints' mean.
        ground_resolution: side of a training image's pixel on the ground, in metres; None: the checkpoint's.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        *,
        device: torch.device,
        tile: int | None = None,
        overlap: float = 100 * OVERLAP,
        tta: str = "none",
        threshold: float | None = None,
        ground_resolution: float | None = None,
    ) -> None:
        self.models = models
        self.networks = [model.backend for model in models]
        self.labels = models[0].labels.average([model.labels for model in models])
        self.head = find_head(self.labels)
        self.preprocessing = models[0].preprocessing
        if ground_resolution:
            self.preprocessing = replace(self.preprocessing, ground_resolution=ground_resolution)
        self.format = self.preprocessing.format
        self.open = partial(open_image, wanted=self.format, scale=self.preprocessing.scale)
        """Returns a file's image at the network's scale."""
        self.notes = [note for model in models for note in model.notes]
        self.device, self.tile, self.tta, self.threshold = device, tile, tta, threshold
        found = [model.threshold for model in models]
        if threshold is None and any(found):  # of a network without one, 0.5 counts
            self.threshold = fmean(p or 0.5 for p in found)
        self.concurrency = 1
        """Number of threads that predict images at the same time and share the memory."""
        self.on_window: Callable[[], object] | None = None
        """Called before each window, or batch, runs through the networks."""
        self._running = Turns(device)
        self._too_large: set[tuple[int, int]] = set()  # sizes of images that ran out of memory
        self.stride = max(network.stride for network in self.networks)
        self.tiling = Tiling(TILE if tile is None else tile, overlap / 100, self.stride)
        self._check_options(threshold)

    @classmethod
    def from_checkpoint(
        cls,
        *paths: str | PathLike[str],
        device: str | torch.device = "auto",
        scale: float | None = None,
        fold: bool = True,
        precision: str = "auto",
        network: object = None,
        runtime: str | None = None,
        **options: Any,
    ) -> Predictor:
        """Return a predictor of the networks in checkpoints (any U-Net program's) or ONNX files.

        Args:
            *paths: files or runs; several, of one data set at one scale, are averaged.
            device: auto (a GPU if there is one), cpu or cuda.
            scale: factor by which images are resized, 0 < scale <= 1, for another program's file (None: 0.5).
            fold: fold batch norm into the convolutions: faster, but the last bits differ from training's.
            precision: float32, or auto: bfloat16 on a CPU that is faster in it, if the network was trained in it.
            network: your own network, or its "module:function"; a checkpoint does not start it.
            runtime: library that runs an exported network (None: the fastest in which its masks were scored).
            **options: tile, overlap, tta, threshold and ground_resolution, as in the class.

        Raises:
            UserError: a file can't be loaded, the networks do not match, or an option is out of range.
        """
        place = check_device(device)
        models = open_models(
            paths,
            place,
            scale=scale,
            runtime=runtime,
            bfloat16=predicts_in_bfloat16(precision),
            network=network,
            fold=fold,
        )
        warn_of_changes(models)
        return cls(models, device=place, **check_options(options))

    def _check_options(self, threshold: float | None) -> None:
        if not 0 <= self.tiling.overlap < 1:
            raise UserError(
                f"--overlap {100 * self.tiling.overlap:g}: must be 0 or more and below 100"
            )
        if self.tta not in KINDS:
            raise UserError(f"--tta {self.tta}: must be one of {', '.join(KINDS)}")
        if self.tiling.side < self.stride:
            raise UserError(
                f"--tile {self.tile}: smaller than the network's stride of {self.stride} pixels; "
                f"use {self.stride} or more, e.g. 1024"
            )
        if threshold is None:
            return
        if not self.labels.is_binary:
            found = f"this network has {self.labels.num_classes} and takes {self.head.decision}"
            raise UserError(f"--threshold {threshold:g}: is for two classes, {found}; leave it out")
        if not 0 < threshold < 1:
            raise UserError(f"--threshold {threshold:g}: must be above 0 and below 1")

    def __call__(self, image: str | Path | Image.Image | NDArray[np.generic]) -> Prediction:
        """Return the prediction for a file, a Pillow image or an array, at its own size.

        Args:
            image: path or address of a file, a Pillow image, or an array (H, W), (H, W, channels) or (channels, H, W).
                Channels and type (uint8, uint16, int16 or float32) are the training images', values as in a file.

        Raises:
            UserError: it can't be read, has another format than the network, or its windows exceed the memory.
        """
        if isinstance(image, (str, Path)):
            with Source(as_path(str(image))) as source:
                return self.predict(self.open(source))
        return self.predict(open_array(image, self.format, self.preprocessing.scale))

    def batch(
        self, images: Iterable[str | Path | Image.Image | NDArray[np.generic]]
    ) -> list[Prediction]:
        """Return the prediction for each of a list of images, of any sizes, with the masks of one by one.

        Small images of one size run through the networks together, which is faster.

        Args:
            images: each as in a call of the predictor; or an array (N, H, W) or (N, H, W, channels).

        Raises:
            UserError: as in a call; it names the image by its place.
        """
        from unet_ddp.prediction.batches import predict_list

        return predict_list(self, images)

    def fits(self, input_size: tuple[int, int]) -> bool:
        """Return whether a scaled image (height, width) is predicted whole."""
        if self.tile is not None:
            return max(input_size) <= self.tiling.window
        if input_size in self._too_large:
            return False
        if max(input_size) <= TILE:
            return True
        if self.device.type == "cuda":
            return self._bytes_for(input_size) <= _FREE * total_memory(self.device)
        return self._bytes_for(input_size) * self.concurrency < _FREE * free_memory(self.device)

    def most_at_once(self, input_size: tuple[int, int]) -> int:
        """Return how many images of a size a GPU takes at once: by all memory, as the free varies."""
        if self.device.type != "cuda":
            return sys.maxsize
        return max(1, int(_FREE * total_memory(self.device) / self._bytes_for(input_size)))

    def _bytes_for(self, input_size: tuple[int, int]) -> int:
        """Return the bytes at the networks' widest point for an image seen whole."""
        return math.prod(input_size) * max(network.bytes_per_pixel for network in self.networks)

    def predict(self, image: SourceImage) -> Prediction:
        """Return the prediction for an opened image, with its mask if it is in windows or on a map."""
        prediction = self.prepare(image)
        if isinstance(prediction.scores, TiledScores):
            prediction.compute()
        prediction.mark_nodata(image.source)
        return prediction

    def prepare(self, image: SourceImage) -> Prediction:
        """Return the prediction for an opened image; see `in_windows` for one that is not seen whole."""
        if self.fits(image.input_size):
            return self.predict_batch([image.read(0, image.input_size[0])], [image.size])[0]
        return self.in_windows(image)

    def in_windows(self, image: SourceImage) -> Prediction:
        """Return the prediction for an image in windows, which are predicted at each use of it."""
        sizes = image.input_size, image.size
        return Prediction(TiledScores(self, image), self.labels, *sizes, threshold=self.threshold)

    def predict_batch(
        self, images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]
    ) -> list[Prediction]:
        """Return predictions of these (height, width) of scaled images, in windows if not even one fits."""
        try:
            found = self.scores(images)  # (N, C, h, w)
            input_size = found.shape[2], found.shape[3]
            return [
                Prediction([(0, scores)], self.labels, input_size, size, threshold=self.threshold)
                for scores, size in zip(found, sizes, strict=True)
            ]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        height, width, _ = images[0].shape
        self._too_large.add((height, width))
        return [self.in_windows(image) for image in map(in_memory, images, sizes)]

    def scores(self, images: Sequence[Pixels], *, is_second: bool = False) -> Scores:
        """Return the `Scores` (N, C, H, W), of two classes (N, 1, H, W), of N scaled images; out of memory, halve them."""
        if self.on_window is not None:
            self.on_window()
        try:
            with self._running:  # writing threads predict windows again: one has a GPU's memory
                pixels = torch.from_numpy(np.stack(images))
                logits = mean_logits(self.networks, pixels, self.tta, self.head)
                return self.head.reduce(logits).cpu().contiguous().numpy()
        except RuntimeError as error:
            if is_second or not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # not in the handler: the error's frames hold tensors
        if len(images) == 1:  # cuBLAS and cuDNN allocate beside the cache
            return self.scores(images, is_second=True)
        half = len(images) // 2
        return np.concatenate([self.scores(images[:half]), self.scores(images[half:])])

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits (N, num_classes, H, W) of images, on the device.

        The images (N, H, W, channels) are on the CPU, at the network's scale, with values as in files. Large ones
        are seen in windows. The total memory decides, not the free, so the logits are the same at any time.
        """
        check_images(images, self.format.channels)
        size = images.shape[1], images.shape[2]
        if max(size) <= TILE or self._bytes_for(size) < _TOTAL_SHARE * total_memory(self.device):
            return mean_logits(self.networks, images, self.tta, self.head)
        rows, columns = map(Tiling(TILE, OVERLAP, self.stride).along, size)
        found = []
        for pixels in images.numpy():
            bands = blend(in_memory(pixels, size).read, self._window_logits, rows, columns)
            found.append(np.concatenate([band for _, band in bands], axis=1))
        return torch.from_numpy(np.stack(found)).to(self.device)

    def _window_logits(self, windows: list[Pixels]) -> Scores:
        pixels = torch.from_numpy(np.stack(windows))
        return mean_logits(self.networks, pixels, self.tta, self.head).cpu().numpy()
