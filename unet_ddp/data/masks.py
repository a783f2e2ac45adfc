"""Masks as arrays: their types, and colours of classes."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from unet_ddp.errors import Limit
from unet_ddp.files import temporary_folder, write_errors

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
Sources = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]
"""Of each pixel along a side: the two scores that it lies between, and the weight of the second."""
Mask = NDArray[Any]
"""Class ids (H, W) uint8, or what else a mask's file has: numbers of objects, uint16 or int32."""

Value = TypeVar("Value", bound=np.generic)

IN_MEMORY = 1 << 30
"""Bytes; larger arrays are in a temporary file."""
_Byte = Annotated[int, Limit(0, 255)]
Colour = tuple[_Byte, _Byte, _Byte]
_WHITE_FIRST: tuple[Colour, ...] = ((255, 255, 255), *[(0, 0, 0)] * 3)  # GIF fills it up to four


def enlargement(small: Sequence[int], large: Sequence[int]) -> float:
    """Return by how much sides grow from a size (height, width) to another: the mean of both."""
    return math.sqrt(large[0] * large[1] / (small[0] * small[1]))


def find_sources(pixels: range, large: int, small: int) -> Sources:
    """Return the scores, of a side of `small` ones, between which pixels of a side of `large` ones lie."""
    at = (np.array(pixels) + 0.5) * small / large - 0.5
    first = np.floor(at).clip(0, small - 1).astype(np.intp)
    weight = (at - first).clip(0, 1).astype(np.float32)
    return first, (first + 1).clip(max=small - 1), weight


def surround(mask: Mask, inside: tuple[int, int], size: Size, scale: float, value: int) -> Mask:
    """Return a mask of a larger size: `mask` from the row and column `inside`, times `scale`, on, around it `value`."""
    top, left = round(inside[0] * scale), round(inside[1] * scale)
    larger = np.full(size, value, mask.dtype)
    part = larger[top : top + mask.shape[0], left : left + mask.shape[1]]
    part[:] = mask[: part.shape[0], : part.shape[1]]
    return larger


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


class ObjectMasks(Protocol):
    """Labels whose predicted masks have the numbers of objects, 0 for none: what is asked of no others."""

    def count(self, mask: Mask) -> int:
        """Return the number of objects."""

    def find_numbers(self, codes: Mask) -> Mask:
        """Return the mask (H, W) that a predicted one is scored by, of a file's values."""

    def score(self, mask: Mask, truth: Mask) -> list[Any]:
        """Return counts of objects that `mask` shares with `truth`: a Tally for each class of objects."""

    def renumber(self, mask: Mask) -> Mask:
        """Return a mask in which pixels became 0, as it would have been predicted."""


def pack_colour(colour: Sequence[int]) -> int:
    """Return 0xRRGGBB of (red, green, blue)."""
    red, green, blue = colour
    return red << 16 | green << 8 | blue


def list_colours(palette: Sequence[Colour] | None, bits: int) -> NDArray[np.int32]:
    """Return the colour, 0xRRGGBB, of each palette index or else grey value (256,), black beyond the palette."""
    if palette is None:
        return np.arange(256, dtype=np.int32) * (255 // ((1 << bits) - 1)) * 0x010101
    return np.array([*map(pack_colour, palette)] + [0] * 256, np.int32)[:256]


def as_numbers(indices: Mask, palette: Sequence[Colour] | None, ignore: int | None = None) -> Mask:
    """Return palette indices of which 0 is the background: exchanged with 1, black, in a black-and-white file.

    Indices of all other palettes are numbers. The palette alone decides, so it is the same for all masks of a set.
    """
    is_white_first = palette in (_WHITE_FIRST[:2], _WHITE_FIRST)
    if not is_white_first or ignore in (0, 1):
        return indices
    found: Mask = np.where(indices < 2, 1 - indices, indices)
    return found


def unpack_colour(code: Any) -> tuple[Any, Any, Any]:
    """Return (red, green, blue) of 0xRRGGBB, a number or an array of them."""
    return code >> 16 & 0xFF, code >> 8 & 0xFF, code & 0xFF


def voc_colour(k: int) -> Colour:
    """Return the k-th colour of PASCAL VOC's colour map: k's bits spread over the channels."""
    red = green = blue = 0
    for place in (7, 6, 5):
        red |= (k & 1) << place
        green |= (k >> 1 & 1) << place
        blue |= (k >> 2 & 1) << place
        k >>= 3
    return red, green, blue


def allocate(shape: tuple[int, ...], dtype: type[Value]) -> NDArray[Value]:
    """Return an uninitialised array; a large one is in a temporary file that ends with it."""
    if math.prod(shape) * np.dtype(dtype).itemsize <= IN_MEMORY:
        return np.empty(shape, dtype)
    advice = "make room, or set TMPDIR to another folder"
    place = temporary_folder()
    with write_errors(place, advice), tempfile.TemporaryFile(dir=place) as file:
        array = np.memmap(file, dtype, mode="w+", shape=shape)
        reserve(file.fileno())
        return array


def reserve(handle: int) -> None:
    """Take all room of an open file to map: a page without room would end the process by SIGBUS."""
    if hasattr(os, "posix_fallocate"):  # macOS has none
        os.posix_fallocate(handle, 0, os.fstat(handle).st_size)
