"""Masks drawn over images, for people to look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from unet_ddp.data.formats.header import Pixels
from unet_ddp.data.labels import Labels

_GAP = 4  # pixels between pictures
TINT = (0, 255, 150)  # for the one foreground class of two


def draw_mask(image: Pixels, ids: NDArray[np.uint8], labels: Labels) -> Tensor:
    """`image` (H, W, C) with the classes of `ids` (H, W) in colour over it, (3, H, W) uint8.

    Class 0 is left clear where there are two: it is the background.
    """
    from torchvision.utils import draw_segmentation_masks

    shown = [k for k in range(labels.num_classes) if labels.num_classes > 2 or k > 0]
    colours: list[str | tuple[int, int, int]] = [
        labels.colours[k] if labels.num_classes > 2 else TINT for k in shown
    ]
    classes = torch.tensor(shown).view(-1, 1, 1)
    layers = torch.from_numpy(ids)[None] == classes  # (classes shown, H, W)
    drawn: Tensor = draw_segmentation_masks(visible(image), layers, alpha=0.5, colors=colours)
    return drawn


def draw_samples(
    samples: list[tuple[Pixels, NDArray[np.uint8], NDArray[np.uint8]]], labels: Labels, path: Path
) -> None:
    """A picture with a row for each sample: image, truth and prediction side by side."""
    rows = [
        _join(
            [visible(image), draw_mask(image, truth, labels), draw_mask(image, predicted, labels)],
            axis=2,
        )
        for image, truth, predicted in samples
    ]
    save_picture(_join(rows, axis=1), path)


def draw_grid(
    samples: list[tuple[Pixels, NDArray[np.uint8]]], labels: Labels, path: Path, *, columns: int
) -> None:
    """A picture of images with their masks over them, `columns` in a row, beside the plain image."""
    pictures = [
        _join([visible(image), draw_mask(image, ids, labels)], axis=2) for image, ids in samples
    ]
    rows = [_join(pictures[n : n + columns], axis=2) for n in range(0, len(pictures), columns)]
    save_picture(_join(rows, axis=1), path)


def _join(pictures: list[Tensor], axis: int) -> Tensor:
    """Pictures (3, H, W) side by side (axis 2) or stacked (axis 1), on white."""
    height, width = (max(picture.shape[side] for picture in pictures) for side in (1, 2))
    padded = []
    for picture in pictures:
        _, h, w = picture.shape
        below, right = (_GAP, width - w) if axis == 1 else (height - h, _GAP)
        padded.append(F.pad(picture, (0, right, 0, below), value=255))
    joined = torch.cat(padded, axis)
    return joined.narrow(axis, 0, joined.shape[axis] - _GAP)


def save_picture(picture: Tensor, path: Path) -> None:
    """Write a (3, H, W) uint8 picture."""
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path, format="PNG")


def visible(image: Pixels) -> Tensor:
    """Any image as 8-bit colour (3, H, W): the first bands, other types by the image's own range."""
    pixels = torch.from_numpy(image[..., :3].astype(np.float32))
    if image.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = (pixels - low) / ((high - low) or 1.0) * 255
    colour = pixels if pixels.shape[2] == 3 else pixels[..., :1].expand(-1, -1, 3)
    return colour.permute(2, 0, 1).to(torch.uint8).contiguous()
