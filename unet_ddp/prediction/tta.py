"""Test-time augmentation: an image is predicted mirrored and turned too, and the mean is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

KINDS = ("none", "mirror", "flips", "d4")


@dataclass(frozen=True)
class Symmetry:
    """One of the eight of a square: rows and columns exchanged or not, then mirrored or not."""

    transposed: bool = False
    upside_down: bool = False
    mirrored: bool = False

    def __call__(self, images: Tensor, axes: tuple[int, int]) -> Tensor:
        """`images` whose rows and columns are `axes`."""
        if self.transposed:
            images = images.transpose(*axes)
        return self._flip(images, axes)

    def undo(self, images: Tensor, axes: tuple[int, int]) -> Tensor:
        """What it was before."""
        images = self._flip(images, axes)
        return images.transpose(*axes) if self.transposed else images

    def _flip(self, images: Tensor, axes: tuple[int, int]) -> Tensor:
        asked = zip(axes, (self.upside_down, self.mirrored), strict=True)
        chosen = [axis for axis, is_flipped in asked if is_flipped]
        return images.flip(chosen) if chosen else images


def symmetries(kind: str) -> list[Symmetry]:
    """Those of a kind: mirror for left and right, flips for up and down too, d4 for turns too."""
    transposed = (False, True) if kind == "d4" else (False,)
    upside_down = (False, True) if kind in ("flips", "d4") else (False,)
    mirrored = (False,) if kind == "none" else (False, True)
    return [Symmetry(*how) for how in product(transposed, upside_down, mirrored)]


def mean_logits(members: list[Callable[[Tensor], Tensor]], pixels: Tensor, kind: str) -> Tensor:
    """Logits (N, C, H, W) of the mean of the probabilities over networks and symmetries.

    Args:
        members: networks, each from pixels (N, H, W, C) to logits (N, C, H, W).
    """
    ways = symmetries(kind)
    if len(members) * len(ways) == 1:
        return members[0](pixels)
    total: Tensor | None = None
    for way in ways:
        turned = way(pixels, (1, 2)).contiguous()
        for member in members:
            seen = way.undo(member(turned), (2, 3)).float().log_softmax(1)
            total = seen if total is None else torch.logaddexp(total, seen)
    assert total is not None
    return total.contiguous()
