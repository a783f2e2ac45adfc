"""Masks as arrays: their types, the class ids of their values, their parts, and colours of classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats.header import Codes
from unet_ddp.errors import Limit

IGNORE_ID = 255
"""Class id of pixels that are left out of the loss and the scores."""

Ids = NDArray[np.uint8]
"""Class ids (H, W)."""
Shares = NDArray[np.uint8]
"""Probabilities in 255ths."""
Mask = NDArray[Any]
"""Class ids (H, W) uint8, or what else a mask's file has: numbers of objects, uint16 or int32."""

_Byte = Annotated[int, Limit(0, 255)]
Colour = tuple[_Byte, _Byte, _Byte]


class Decodable(Protocol):
    """The part of a prediction from which labels make its mask."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the image."""

    def most_probable(self) -> Ids:
        """Return the class ids (H, W) by probability, or by a threshold."""

    def probability_bands(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first row of a band of the image, and its probabilities (C, rows, W)."""


class Part(NamedTuple):
    """A connected part of a mask, or one of its objects."""

    class_id: int
    number: int | None
    """Of an object; None for a connected part."""
    inside: NDArray[np.bool_]
    """(h, w): its pixels in a window of the mask."""
    left: int
    top: int


def connected_parts(mask: Mask, class_ids: Sequence[int]) -> Iterator[Part]:
    """Yield the parts of each class in a mask (H, W) whose pixels share edges."""
    import cv2

    for k in class_ids:
        pixels = (mask == k).view(np.uint8)
        count, numbers, boxes, _ = cv2.connectedComponentsWithStats(pixels, connectivity=4)
        for number in range(1, count):
            left, top, width, height, _ = map(int, boxes[number])
            window = numbers[top : top + height, left : left + width]
            yield Part(k, None, window == number, left, top)


@dataclass(frozen=True)
class ValueTable:
    """Class ids of mask values; the fields are those of `Labels`."""

    values: tuple[int, ...]
    rgb: bool
    ignore: int | None
    threshold: int | None

    def look_up(self, codes: Codes) -> tuple[Ids, NDArray[np.bool_] | None]:
        """Return the class ids (H, W) of mask values, and where these are known: None if all are."""
        if codes.dtype == np.uint8 and codes.size:  # by table: a tenth of the time
            table, is_known = self._bytes
            if is_known[: int(codes.max()) + 1].all() or is_known.take(codes).all():
                ids = np.frombuffer(bytearray(codes).translate(table), np.uint8)
                return ids.reshape(codes.shape), None
        ids, known = self._search(codes)
        return ids, None if known.all() else known

    @cached_property
    def _bytes(self) -> tuple[bytes, NDArray[np.bool_]]:
        """Class id of every value of 8 bits, and whether it has one."""
        ids, known = self._search(np.arange(256, dtype=np.int32))
        return ids.tobytes(), known

    def _search(self, codes: Codes) -> tuple[Ids, NDArray[np.bool_]]:
        if self.threshold is not None:
            return self._split(codes, self.threshold), np.ones(codes.shape, bool)
        pairs = [(value, k) for k, value in enumerate(self.values)]
        if self.ignore is not None:
            pairs.append((self.ignore, IGNORE_ID))
        values, ids = (np.array(column, np.int32) for column in zip(*sorted(pairs), strict=True))
        places = np.searchsorted(values, codes).clip(max=len(values) - 1)
        return ids.astype(np.uint8)[places], values[places] == codes

    def _split(self, codes: Codes, threshold: int) -> Ids:
        """Return class ids of soft or numbered masks: brighter is the class of the larger value."""
        brightness = np.max(unpack_colour(codes), axis=0) if self.rgb else codes
        bright = int(self.values[1] > self.values[0])
        ids = np.where(brightness > threshold, bright, 1 - bright).astype(np.uint8)
        if self.ignore is not None:  # on either side of the threshold
            ids[codes == self.ignore] = IGNORE_ID
        return ids


def unpack_colour(code: Any) -> tuple[Any, Any, Any]:
    """Return (red, green, blue) of 0xRRGGBB, a number or an array of them."""
    return code >> 16 & 0xFF, code >> 8 & 0xFF, code & 0xFF


def voc_colour(k: int) -> Colour:
    """Return the k-th colour of PASCAL VOC's colour map: k's bits spread over the channels."""
    red, green, blue = (
        sum((k >> 3 * level + channel & 1) << 7 - level for level in range(3))
        for channel in range(3)
    )
    return red, green, blue
