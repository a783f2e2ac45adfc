"""NPY files: arrays of NumPy."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import UnidentifiedImageError

from unet_ddp.data.readers.bands import BandsFile, as_bands
from unet_ddp.data.readers.base import Header, storage_dtype
from unet_ddp.errors import UserError
from unet_ddp.files.contents import describe_content


class NpyFile(BandsFile):
    """An NPY file, mapped into memory."""

    suffixes = (".npy",)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if (
            describe_content(path) != "a NumPy array"
        ):  # np.load would take ZIP and pickle files, too
            raise UnidentifiedImageError
        try:
            stored: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            if "object" not in str(error):
                raise
            raise UserError(
                f"{path}: holds Python objects, not an array of numbers; if it is Cellpose's _seg.npy, "
                "export the masks there: File > Save masks as PNG/tif"
            ) from None
        self._bands = as_bands(stored, path)
        if not self._bands.size:
            raise UserError(f"{path}: has no pixels")

    @cached_property
    def header(self) -> Header:
        """Properties of the array."""
        height, width, channels = self._bands.shape
        return Header(width, height, channels, storage_dtype(self._bands.dtype), is_array=True)

    def read_bands(self) -> NDArray[Any]:
        """Return the array (H, W, C)."""
        return np.array(self._bands)

    def read_window(self, rows: slice, columns: slice) -> NDArray[Any]:
        """Return a part of the array (h, w, C)."""
        return np.array(self._bands[rows, columns])
