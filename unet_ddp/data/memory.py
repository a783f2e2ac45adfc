"""Decoded samples in memory, for sets that take little of it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

import numpy as np

from unet_ddp.data.cache import Arrays
from unet_ddp.data.formats.header import ImageFormat

_SIZE = struct.Struct("<2Q")  # height and width; 0 for a sample that is not there yet


class SampleMemory:
    """Samples that are decoded and scaled once, shared by the reading processes of a loader.

    They are forked after this. The memory is anonymous, taken page by page as samples are written.
    A process reads what another has written only in a later epoch, all of whose keys are given out
    after the batches of the one before have arrived: nothing has to be locked.

    Args:
        count: samples.
        image_format: of all images.
        pixels: of the largest image, after scaling.
    """

    def __init__(self, count: int, image_format: ImageFormat, *, pixels: int) -> None:
        self._format = image_format
        self._slot = _SIZE.size + image_format.bytes_with_mask(1, pixels)
        self._memory = mmap.mmap(-1, count * self._slot)

    def load(self, index: int, decode: Callable[[], Arrays]) -> Arrays:
        """Return a copy of the sample, which is decoded the first time."""
        place = index * self._slot
        height, width = _SIZE.unpack_from(self._memory, place)
        first, channels, count = place + _SIZE.size, self._format.channels, height * width
        if count:
            image = np.frombuffer(self._memory, self._format.dtype, count * channels, first)
            ids = np.frombuffer(self._memory, np.uint8, count, first + image.nbytes)
            return image.reshape(height, width, channels).copy(), ids.reshape(height, width).copy()
        image, ids = decode()
        stored = image.tobytes() + ids.tobytes()
        if len(stored) <= self._slot - _SIZE.size:  # not a file that grew since the scan
            self._memory[first : first + len(stored)] = stored
            _SIZE.pack_into(self._memory, place, *ids.shape)
        return image, ids
