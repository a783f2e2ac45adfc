"""Masks as arrays: their types, the class ids of their values, and colours of classes."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import Codes
from unet_ddp.errors import Limit
from unet_ddp.files import write_errors

IGNORE_ID = 255
"""Class id of pixels that are left out of the loss and the scores."""

Ids = NDArray[np.uint8]
"""Class ids (H, W)."""
Shares = NDArray[np.uint8]
"""Probabilities in 255ths."""
Size = tuple[int, int]
"""(height, width)"""
Flags = NDArray[np.bool_]
"""(H, W), or another shape: True or False."""
Mask = NDArray[Any]
"""Class ids (H, W) uint8, or what else a mask's file has: numbers of objects, uint16 or int32."""

Value = TypeVar("Value", bound=np.generic)

IN_MEMORY = 1 << 30
"""Bytes; larger arrays are in a temporary file."""
_Byte = Annotated[int, Limit(0, 255)]
Colour = tuple[_Byte, _Byte, _Byte]


class Band(Protocol):
    """Some rows of a prediction, at the image's size."""

    rows: slice
    """Their place in the image."""

    @property
    def ids(self) -> Ids:
        """Class ids (rows, W) by probability, or by a threshold."""

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """(C, rows, W); over the classes they add up to 1."""


class Regions(NamedTuple):
    """Pixels of a mask of which connected ones of one value are an object."""

    values: Mask
    """(H, W)."""
    counted: Flags
    """(H, W): the others belong to no object."""
    ids: Ids
    """(H, W): class ids."""
    are_numbers: bool
    """The values are numbers of objects."""


@dataclass(frozen=True)
class ValueTable:
    """Class ids of mask values; the fields are as in `Labels`."""

    values: tuple[int, ...]
    rgb: bool
    ignore: int | None
    threshold: int | None

    def look_up(self, codes: Codes) -> tuple[Ids, Flags | None]:
        """Return the class ids (H, W) of mask values, and where these are known: None if all are."""
        if codes.dtype == np.uint8 and codes.size:  # by table: a tenth of the time
            table, is_known = self._bytes
            if is_known[: int(codes.max()) + 1].all() or is_known.take(codes).all():
                ids = np.frombuffer(bytearray(codes).translate(table), np.uint8)
                return ids.reshape(codes.shape), None
        ids, known = self._search(codes)
        return ids, None if known.all() else known

    @cached_property
    def _bytes(self) -> tuple[bytes, Flags]:
        """Class id of every value of 8 bits, and whether it has one."""
        ids, known = self._search(np.arange(256, dtype=np.int32))
        return ids.tobytes(), known

    def _search(self, codes: Codes) -> tuple[Ids, Flags]:
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


def pack_colour(colour: Sequence[int]) -> int:
    """Return 0xRRGGBB of (red, green, blue)."""
    red, green, blue = colour
    return red << 16 | green << 8 | blue


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


def allocate(shape: tuple[int, ...], dtype: type[Value]) -> NDArray[Value]:
    """Return an uninitialised array; a large one is in a temporary file that ends with it."""
    if math.prod(shape) * np.dtype(dtype).itemsize <= IN_MEMORY:
        return np.empty(shape, dtype)
    advice = "make room, or set TMPDIR to another folder"
    with write_errors(Path(tempfile.gettempdir()), advice), tempfile.TemporaryFile() as file:
        array = np.memmap(file, dtype, mode="w+", shape=shape)
        reserve(file.fileno())
        return array


def reserve(handle: int) -> None:
    """Take all room of an open file to map: a page without room would end the process by SIGBUS."""
    if hasattr(os, "posix_fallocate"):  # macOS has none
        os.posix_fallocate(handle, 0, os.fstat(handle).st_size)
