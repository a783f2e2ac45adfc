"""Trained networks with all that belongs to them: from an image of any size to its mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from unet_ddp.data.formats.header import ImageFormat, Pixels
from unet_ddp.data.formats.read import read_header, read_image
from unet_ddp.data.formats.resize import resize_area, scaled_size
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.distributed.device import free_memory, pick_device, total_memory
from unet_ddp.errors import UserError
from unet_ddp.prediction.backends import LoadedModel, build_model, open_model
from unet_ddp.prediction.prediction import Band, Prediction, Scores, allocate, reduce_logits
from unet_ddp.prediction.streaming import ArrayRows, Rows, ScaledRows, TiffRows
from unet_ddp.prediction.tiling import Tiling, blend
from unet_ddp.prediction.tta import KINDS, mean_logits
from unet_ddp.runs.weights import SavedModel

TILE, OVERLAP = 1024, 0.25
_FREE_SHARE = 0.5  # of the free memory, that predicting an image whole may take
_TOTAL_SHARE = 1 / 8  # of all memory, that `logits` may take: there may be several processes
_STREAMED = 1 << 24  # pixels of a TIFF above which it is read row by row


@dataclass(frozen=True)
class Options:
    """How images are predicted."""

    tile: int | None = None
    """Side of the windows, in pixels of the scaled image; None for whole images where they fit."""
    overlap: float = OVERLAP
    """Share of a window's side that its neighbours see too."""
    tta: str = "none"
    """none, mirror, flips or d4."""
    threshold: float | None = None
    """None for the checkpoint's; it may have none."""


class Predictor:
    """Trained networks, one or several whose probabilities are averaged.

    Args:
        members: of the same classes, channels and scale.
        device: theirs.

    Raises:
        UserError: the members do not match, or an option can't be.
    """

    def __init__(
        self,
        members: Sequence[LoadedModel],
        *,
        device: torch.device,
        options: Options | None = None,
    ) -> None:
        self.members = members
        self.labels: Labels = members[0].labels
        self.preprocessing: Preprocessing = members[0].preprocessing
        self.device = device
        self.options = options or Options()
        self.notes = [note for member in members for note in member.notes]
        self.stride = max(member.backend.stride for member in members)
        self.threshold = self._pick_threshold()
        self.at_once = 1
        """Images that threads predict at the same time and that share the memory."""
        self.tiling = Tiling(self.options.tile or TILE, self.options.overlap, self.stride)
        self.tiling.check()
        if self.options.tta not in KINDS:
            raise UserError(f"--tta {self.options.tta}: none of {', '.join(KINDS)}")

    @classmethod
    def from_checkpoint(
        cls,
        *paths: str | Path,
        device: str | torch.device = "auto",
        scale: float | None = None,
        tile: int | None = None,
        overlap: float = OVERLAP,
        tta: str = "none",
        threshold: float | None = None,
        fold: bool = True,
    ) -> Predictor:
        """Return a predictor of the networks in checkpoints (any U-Net program's) or ONNX files.

        Args:
            device: auto, cpu or cuda.
            scale: for checkpoints that do not say at which scale they were trained.
            fold: fold batch norm into the convolutions: faster, and other logits in the last bits.
            tile, overlap, tta, threshold: see `Options`.

        Raises:
            UserError: one can't be loaded, they do not match, or an option can't be.
        """
        place = device if isinstance(device, torch.device) else pick_device(device)
        members = [open_model(Path(path), place, scale=scale, fold=fold) for path in paths]
        for path, member in zip(paths, members, strict=True):
            _check_match(str(path), member, str(paths[0]), members[0])
        options = Options(tile, overlap, tta, threshold)
        return cls(members, device=place, options=options)

    @classmethod
    def from_model(
        cls, model: SavedModel, source: Path, *, device: torch.device, fold: bool = True
    ) -> Predictor:
        """Return a predictor of a model that was read from `source` already.

        Raises:
            UserError: its network or classes are not known, or its weights are another network's.
        """
        return cls([build_model(model, source, device, fold=fold)], device=device)

    def _pick_threshold(self) -> float | None:
        asked = self.options.threshold
        if asked is None:
            found = {member.threshold for member in self.members}
            return found.pop() if len(found) == 1 else None
        if self.labels.num_classes != 2:
            raise UserError(
                f"--threshold {asked:g}: for two classes, and this network has "
                f"{self.labels.num_classes}; leave the flag out"
            )
        if not 0 < asked < 1:
            raise UserError(f"--threshold {asked:g}: must be above 0 and below 1")
        return asked

    @property
    def format(self) -> ImageFormat:
        """What images must be like."""
        return self.preprocessing.format

    def __call__(
        self, image: str | Path | Image.Image | NDArray[np.generic], *, keep: bool = False
    ) -> Prediction:
        """The mask of an image, at its own size.

        Args:
            image: a file, a Pillow image, or an array (H, W) or (H, W, C) of the network's depth.
            keep: also of an image that is predicted in windows, keep what probabilities take;
                without it they are computed anew when they are asked for.

        Raises:
            UserError: it can't be read, or has other channels than the network takes.
        """
        if isinstance(image, (str, Path)):
            opened = self.open(Path(image))
        else:
            opened = self._open_array(image)
        return self.predict(opened, keep=keep)

    def open(self, path: Path, *, scale: float | None = None) -> SourceImage:
        """The image at `path`, scaled: in memory, or to be read row by row where it is large.

        Args:
            scale: the network's when absent.

        Raises:
            UserError: it can't be read, or has other channels than the network takes.
        """
        scale = scale or self.preprocessing.scale
        if path.suffix.lower() in (".tif", ".tiff"):
            rows = TiffRows.open(path, self.format)
            if rows is not None and rows.height * rows.width >= _STREAMED:
                size = rows.height, rows.width
                return SourceImage(ScaledRows(rows, scaled_size(*size, scale)), size, path)
            if rows is not None:
                rows.close()
        header = read_header(path)
        pixels = read_image(path, self.format, scale=scale)
        return SourceImage(ArrayRows(pixels), (header.height, header.width), path)

    def _open_array(self, image: Image.Image | NDArray[np.generic]) -> SourceImage:
        """An image in memory, scaled."""
        wanted = self.format
        if isinstance(image, Image.Image):
            deep = image.mode.startswith(("I", "F"))
            mode = "L" if wanted.channels == 1 else "RGB"
            image = np.asarray(image if deep else image.convert(mode))
            image = image.astype(wanted.dtype) if deep else image
        pixels = image if image.ndim == 3 else image[..., None]
        if pixels.shape[2] == 1 and wanted.channels == 3:
            pixels = np.repeat(pixels, 3, axis=2)
        if pixels.ndim != 3 or pixels.shape[2] != wanted.channels or pixels.dtype != wanted.dtype:
            raise UserError(
                f"an array of shape {image.shape} and kind {image.dtype}: the network takes "
                f"(H, W, {wanted.channels}) of {wanted.dtype}"
            )
        size = pixels.shape[0], pixels.shape[1]
        scaled = resize_area(cast(Pixels, pixels), scaled_size(*size, self.preprocessing.scale))
        return SourceImage(ArrayRows(scaled), size)

    def fits(self, size: tuple[int, int]) -> bool:
        """Whether a scaled image of `size` is predicted whole."""
        if self.options.tile is not None:
            return max(size) <= self.tiling.window
        if max(size) <= TILE:
            return True
        return self._bytes_for(size) * self.at_once < _FREE_SHARE * free_memory(self.device)

    def _bytes_for(self, size: tuple[int, int]) -> int:
        """Return the bytes that a network takes, at its widest, for an image seen whole."""
        return size[0] * size[1] * max(member.backend.bytes_per_pixel for member in self.members)

    def predict(self, opened: SourceImage, *, keep: bool = False) -> Prediction:
        """The mask of an opened image."""
        if not self.fits(opened.small):
            return self._predict_tiled(opened, keep=keep)
        with closing(opened.rows):
            return self.predict_scaled(opened.rows.read(0, opened.small[0]), opened.size)

    def predict_scaled(self, pixels: Pixels, size: tuple[int, int]) -> Prediction:
        """The mask, `size` (height, width) large, of an image that is scaled already."""
        return self.predict_batch([pixels], [size])[0]

    def predict_batch(
        self, images: Sequence[Pixels], sizes: Sequence[tuple[int, int]]
    ) -> list[Prediction]:
        """The masks of images that are scaled to one size already."""
        return [
            self._prediction([(0, scores)], (scores.shape[1], scores.shape[2]), size)
            for scores, size in zip(self.scores(images), sizes, strict=True)
        ]

    def _prediction(
        self, scores: Sequence[Band] | Windows, small: tuple[int, int], size: tuple[int, int]
    ) -> Prediction:
        return Prediction(scores, self.labels, small=small, size=size, threshold=self.threshold)

    def _predict_tiled(self, opened: SourceImage, *, keep: bool) -> Prediction:
        windows = Windows(self, opened)
        if keep:
            classes = self.labels.num_classes if self.labels.num_classes > 2 else 1
            kept: Scores = allocate((classes, *opened.small), np.float32)
            for top, scores in windows:
                kept[:, top : top + scores.shape[1]] = scores
            return self._prediction([(0, kept)], opened.small, opened.size)
        prediction = self._prediction(windows, opened.small, opened.size)
        _ = prediction.ids
        return prediction

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits (N, num_classes, H, W) of images, on the device.

        Images too large for the memory are seen in windows. All memory counts and not the free,
        so that the logits are the same in any minute and on any number of processes.

        Args:
            images: pixels (N, H, W, C) at the network's scale, of the network's type, on the CPU.
        """
        size = images.shape[1], images.shape[2]
        if max(size) <= TILE or self._bytes_for(size) < _TOTAL_SHARE * total_memory(self.device):
            return self._mean_logits(images)  # (N, C, H, W)
        return torch.stack([self._tiled_logits(image.numpy()) for image in images])

    def _tiled_logits(self, image: Pixels) -> Tensor:
        bands = blend(
            lambda top, bottom: image[top:bottom],
            lambda windows: self._mean_logits(torch.from_numpy(np.stack(windows))).cpu().numpy(),
            (image.shape[0], image.shape[1]),
            Tiling(TILE, OVERLAP, self.stride),
        )
        return torch.from_numpy(np.concatenate([band for _, band in bands], 1)).to(self.device)

    def _mean_logits(self, images: Tensor) -> Tensor:
        return mean_logits([member.backend for member in self.members], images, self.options.tta)

    @torch.inference_mode()
    def scores(self, images: Sequence[Pixels]) -> Scores:
        """Images (H, W, C) of one size and at the network's scale to scores, N of them."""
        batch = torch.from_numpy(np.stack(images))
        found: Scores = reduce_logits(self._mean_logits(batch)).cpu().contiguous().numpy()
        return found


@dataclass(frozen=True)
class SourceImage:
    """An image that can be read, scaled."""

    rows: Rows
    """Of the scaled image."""
    size: tuple[int, int]
    """(height, width) of the image itself."""
    path: Path | None = None
    """None for an image that was in memory."""

    @property
    def small(self) -> tuple[int, int]:
        """(height, width) of the scaled image."""
        return self.rows.height, self.rows.width


class Windows:
    """The blended scores of an image that is predicted in windows, computed as they are read."""

    def __init__(self, predictor: Predictor, opened: SourceImage) -> None:
        self.predictor = predictor
        self.path = opened.path
        self._opened: SourceImage | None = opened

    def __iter__(self) -> Iterator[Band]:
        opened = self._opened
        if self.path is not None:  # closed at the end, and opened anew for another time
            self._opened = None
        if opened is None:
            assert self.path is not None
            opened = self.predictor.open(self.path)
        with closing(opened.rows) as rows:
            yield from blend(rows.read, self.predictor.scores, opened.small, self.predictor.tiling)


def _check_match(path: str, member: LoadedModel, first_path: str, first: LoadedModel) -> None:
    """Refuse networks that can't be averaged."""
    for what, mine, other in (
        ("classes", member.labels.values, first.labels.values),
        ("channels", member.preprocessing.channels, first.preprocessing.channels),
        ("type of pixels", member.preprocessing.dtype, first.preprocessing.dtype),
        ("scale", member.preprocessing.scale, first.preprocessing.scale),
    ):
        if mine != other:
            raise UserError(
                f"{path}: its {what} ({mine}) are not those of {first_path} ({other}); an ensemble "
                "needs networks of one data set at one scale"
            )
