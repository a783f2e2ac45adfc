"""Pictures of masks over their images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Colour, Ids
from unet_ddp.data.readers.base import Pixels

TINT = (0, 255, 150)  # for the foreground of two classes


def draw_mask(image: Pixels, ids: Ids, labels: Labels) -> Tensor:
    """Return `image` (H, W, C) with the classes of `ids` (H, W) over it, (3, H, W) uint8."""
    picture = to_rgb(image)
    layer = picture.clone()
    for k, colour in class_colours(labels).items():
        layer[:, torch.from_numpy(ids == k)] = torch.tensor(colour, dtype=torch.uint8)[:, None]
    return torch.lerp(picture.float(), layer.float(), labels.layer_opacity / 100).to(torch.uint8)


def class_colours(labels: Labels) -> dict[int, Colour]:
    """Return the colours that classes are drawn in: one tint for the class that is not the background."""
    if len(labels.foreground) == 1:
        return {labels.foreground[0]: TINT}
    classes = labels.foreground if labels.layer_opacity == 100 else range(labels.num_classes)
    return {k: labels.colours[k] for k in classes}


def save_picture(picture: Tensor, path: Path) -> None:
    """Write a (3, H, W) uint8 picture as PNG, which says that unet_ddp made it."""
    about = PngInfo()
    about.add_text("Software", "unet_ddp")
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path, format="PNG", pnginfo=about)


def to_rgb(image: Pixels) -> Tensor:
    """Return any image as 8-bit colour (3, H, W): its first bands, stretched if not 8 bit."""
    pixels = torch.from_numpy(image[..., :3].astype(np.float32))
    if image.dtype != np.uint8:
        low = float(pixels.min())
        high = float(pixels.max())
        extent = (high - low) or 1.0
        pixels = (pixels - low) / extent * 255
    if pixels.shape[2] != 3:  # grey
        pixels = pixels[..., :1].expand(-1, -1, 3)
    return pixels.permute(2, 0, 1).to(torch.uint8).contiguous()
