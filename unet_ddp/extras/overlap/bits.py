"""Class ids of classes that overlap: bit fields.

Each class has a bit: the first seven have bits 0 to 6, the others bits 8 to 15. No class has
bit 7, so no bit field of classes is IGNORE_ID, 255, which marks ignored pixels as in other masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unet_ddp.data.masks import IGNORE_ID, Flags

MOST_CLASSES = 15
SMALL = 7
"""Number of classes up to which a bit field has 8 bits; of more, it has 16."""


def bit_of(k: int) -> int:
    """Return the bit of class k."""
    return 1 << (k if k < SMALL else k + 1)


def dtype_of(num_classes: int) -> type[np.uint8] | type[np.int16]:
    """Return the type of bit fields; torch and OpenCV know int16 better than uint16."""
    return np.uint8 if num_classes <= SMALL else np.int16


def join_planes(planes: Iterable[Flags], num_classes: int) -> NDArray[Any]:
    """Return the bit fields of one or more arrays of flags, one for each class, in their shape."""
    bits: Any = 0
    for k, plane in enumerate(planes):
        bits = bits | plane * np.uint16(bit_of(k))
    return np.asarray(bits, np.uint16).view(np.int16).astype(dtype_of(num_classes))


def find_plane(ids: NDArray[Any], k: int) -> Flags:
    """Return where bit fields have class k; an ignored pixel has none."""
    has = (ids & np.array(bit_of(k)).astype(ids.dtype)) != 0
    return np.asarray(has & (ids != IGNORE_ID))


def find_truth(masks: Tensor, num_classes: int) -> Tensor:
    """Return which class has which pixel, (N, C, H, W) bool, of bit fields (N, H, W) int64."""
    masks = masks.unsqueeze(1)  # (N, 1, H, W)
    return ((masks & _bits(num_classes, masks)) != 0) & (masks != IGNORE_ID)


def sum_bits(truth: Tensor) -> Tensor:
    """Return the bit fields (N, H, W) int64 of which class has which pixel, (N, C, H, W) bool."""
    return (truth * _bits(truth.shape[1], truth)).sum(1)


def _bits(num_classes: int, like: Tensor) -> Tensor:
    bits = torch.tensor([bit_of(k) for k in range(num_classes)], device=like.device)
    return bits.view(1, -1, 1, 1)
