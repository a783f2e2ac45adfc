"""Test-time augmentation: the mean of the predictions of flipped and transposed images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

KINDS = ("none", "mirror", "flips", "d4")


@dataclass(frozen=True)
class Transform:
    """One of the eight symmetries of a square: a transposition or none, then flips or none."""

    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False

    def apply(self, images: Tensor, axes: tuple[int, int]) -> Tensor:
        """Return `images`, whose rows and columns are `axes`, transformed."""
        if self.transpose:
            images = images.transpose(*axes)
        return images.flip(self._flipped(axes))

    def invert(self, images: Tensor, axes: tuple[int, int]) -> Tensor:
        """Return the tensor that `apply` transformed."""
        images = images.flip(self._flipped(axes))
        return images.transpose(*axes) if self.transpose else images

    def _flipped(self, axes: tuple[int, int]) -> list[int]:
        flips = zip(axes, (self.flip_rows, self.flip_columns), strict=True)
        return [axis for axis, is_flipped in flips if is_flipped]


def transforms(kind: str) -> list[Transform]:
    """Return the group of a kind: mirror flips columns, flips rows too, d4 transposes too."""
    transpose = (False, True) if kind == "d4" else (False,)
    flip_rows = (False, True) if kind in ("flips", "d4") else (False,)
    flip_columns = (False,) if kind == "none" else (False, True)
    return [Transform(*flags) for flags in product(transpose, flip_rows, flip_columns)]


def mean_logits(
    networks: Sequence[Callable[[Tensor], Tensor]], pixels: Tensor, kind: str
) -> Tensor:
    """Return logits (N, C, H, W) of the mean probabilities over networks and transforms.

    Each network maps `pixels` (N, H, W, C) to logits.
    """
    if kind == "none" and len(networks) == 1:
        return networks[0](pixels)
    group = transforms(kind)
    total: Tensor | None = None
    for transform in group:
        transformed = transform.apply(pixels, (1, 2)).contiguous()
        for network in networks:
            logits = transform.invert(network(transformed), (2, 3))
            found = logits.float().log_softmax(1)
            total = found if total is None else torch.logaddexp(total, found)
    assert total is not None
    return total.contiguous()
