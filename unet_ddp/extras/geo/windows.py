"""TIFFs by windows, as GDAL reads them: of this machine, or objects of which it fetches the tiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.readers.base import Header, storage_dtype
from unet_ddp.errors import install_command
from unet_ddp.extras.formats.tiff import Layout
from unet_ddp.extras.geo.maps import Place, find_place, gdal, open_map

Opener = Callable[[], Any]
"""Returns an open file, as much of one as GDAL and Pillow need."""


def open_windows(path: Path, opener: Opener | None = None) -> MapWindows | None:
    """Return a TIFF by windows; None if that needs rasterio, or its pixels are stored in other ways.

    `opener` opens an object in storage.
    """
    if install_command("rasterio", "geo"):
        return None
    if opener is None and not _is_text(path):
        opener = partial(path.open, "rb")
    found = MapWindows(path, opener)
    return found if found.bands else None


def _is_text(path: Path) -> bool:
    """Return whether GDAL can open a path by its name."""
    with suppress(UnicodeEncodeError):
        return bool(str(path.absolute()).encode())
    return False


class MapWindows:
    """An open TIFF. One thread uses it at a time."""

    place: Place | None = None
    bands: list[int]
    """Of GDAL, alpha last; none if they are not the image's pixels."""
    has_mask: bool
    """True if a mask in the file says which pixels have data."""

    def __init__(self, path: Path, opener: Opener | None) -> None:
        self.path = path
        self._opened: Callable[[], AbstractContextManager[Any]]
        if opener is None:
            dataset = open_map(path)
            self._opened = lambda: nullcontext(dataset)
        else:  # for each window: closed by another thread, or by the garbage collector, GDAL crashes
            self._opened = partial(open_map, path, opener=lambda *_, **__: opener())
        with opener() if opener else path.open("rb") as file:
            layout = Layout.read(file)
        with self._opened() as dataset:
            self._describe(layout, dataset)

    def _describe(self, layout: Layout, dataset: Any) -> None:
        with suppress(Exception):  # of an odd CRS
            self.place = find_place(dataset)
        kinds = [kind.name for kind in dataset.colorinterp]
        is_indexed = layout.has_palette and kinds == ["palette"] and dataset.dtypes == ("uint8",)
        is_packed = "NBITS" in dataset.tags(1, ns="IMAGE_STRUCTURE")
        is_stack = "\nimages=" in dataset.tags().get("TIFFTAG_IMAGEDESCRIPTION", "")  # ImageJ's
        is_odd = layout.orientation > 1 or is_packed or is_stack
        self.bands = [*dataset.indexes] if (layout.is_plain or is_indexed) and not is_odd else []
        has_alpha = layout.alpha is not None
        self.has_mask = [kind.name for kind in dataset.mask_flag_enums[0]] == ["per_dataset"]
        if layout.alpha is not None and self.bands:
            self.bands.append(self.bands.pop(layout.alpha))
        self.header = Header(
            dataset.width,
            dataset.height,
            3 if is_indexed else dataset.count - has_alpha,
            storage_dtype(np.dtype(dataset.dtypes[0])),
            has_alpha=has_alpha,
            palette=_read_palette(dataset) if is_indexed else None,
            nodata=layout.nodata,
            ground_resolution=self.place.resolution if self.place else None,
            is_array=layout.is_bands,
        )

    def read_window(self, rows: slice, columns: slice, side: int | None = None) -> NDArray[Any]:
        """Return the bands (h, w, C) of a part; alpha is the last.

        With a `side`, some of the pixels, (side, side, C): of overviews, where the file has them.
        """
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        shape = None if side is None else (len(self.bands), side, side)
        with gdal(self.path), self._opened() as dataset:
            stored = dataset.read(self.bands, window=window, out_shape=shape)
        return np.ascontiguousarray(np.moveaxis(stored, 0, -1))

    def is_masked(self, rows: slice, columns: slice) -> bool:
        """Return whether a mask in the file says that no pixel of a part has data."""
        if not self.has_mask:  # nothing is opened, which may be an object in storage
            return False
        window = (rows.start, rows.stop), (columns.start, columns.stop)
        with gdal(self.path), self._opened() as dataset:
            return not dataset.read_masks(1, window=window).any()


def _read_palette(dataset: Any) -> tuple[tuple[int, int, int], ...]:
    colours = dataset.colormap(1)
    return tuple(colours.get(index, (0, 0, 0))[:3] for index in range(256))
