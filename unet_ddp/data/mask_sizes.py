"""Masks of another size than their images."""

from __future__ import annotations

from pathlib import Path

from unet_ddp.data.masks import Size
from unet_ddp.data.readers.base import Codes
from unet_ddp.data.readers.resize import resize_nearest
from unet_ddp.errors import UserError


def keeps_proportions(mask: Size, image: Size) -> bool:
    """Return whether two sizes (height, width) have one aspect, but for a pixel of the smaller one."""
    (height, width), (image_height, image_width) = mask, image
    rounding = max(height + width, image_height + image_width)
    return abs(width * image_height - height * image_width) <= rounding


def is_rotated(mask: Size, image: Size) -> bool:
    """Return whether a mask has its image's sides exchanged, and can't be resized without distortion."""
    return mask == image[::-1] and not keeps_proportions(mask, image)


def mask_size_message(
    mask: Path, mask_size: Size, image_size: Size, advice: str = "resize one"
) -> str:
    """Return the message for a mask whose (height, width) is not that of its image."""
    (height, width), (image_height, image_width) = mask_size, image_size
    if mask_size == image_size[::-1]:
        advice = "one of them is rotated by 90 degrees"
    return f"{mask} is {width}x{height}, its image {image_width}x{image_height}; {advice}"


def fit_mask(codes: Codes, size: Size, path: Path, *, resize: bool, is_whole: bool) -> Codes:
    """Return a mask's values (H, W) at the size of its image, to which they are resized if `resize`.

    At a scale, sides say nothing of a rotation, as they are rounded: the check of the set compares the files' own.

    Raises:
        UserError: it has another size and is not resized, or it `is_whole` and rotated.
    """
    if codes.shape == size:
        return codes
    if not resize or (is_whole and is_rotated(codes.shape, size)):
        raise UserError(mask_size_message(path, codes.shape, size))
    return resize_nearest(codes, size)
