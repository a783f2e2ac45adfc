"""Readers of images that need not fit into memory, at their own size or scaled down."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np

from unet_ddp.data.formats.arrays import only_page, open_tiff
from unet_ddp.data.formats.header import ImageFormat, Pixels, storage_dtype
from unet_ddp.data.formats.maps import gdal, is_readable, open_map
from unet_ddp.data.formats.read import find_nodata, refuse_not_finite
from unet_ddp.data.formats.resize import resize_area

_AT_ONCE = 1 << 24  # pixels that are scaled at a time
_ALPHA, _ORIENTATION, _JPEG = (1, 2), 274, 7  # of TIFF: extra samples, a tag, a compression


class ArrayReader:
    """An image (H, W, C) in memory."""

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom` (exclusive), (rows, W, C)."""
        return self.pixels[top:bottom]

    def close(self) -> None:
        """Do nothing: there is no file."""


class ScaledReader:
    """`source` reduced to `size` (height, width), equal to reducing it whole.

    Each new pixel is the mean of its area. Where `p` rows become `q`, groups of `p` rows are
    reduced independently; without small groups, rows are weighted here.
    """

    def __init__(self, source: RowReader, size: tuple[int, int]) -> None:
        self.source = source
        self.height, self.width = size
        self.ratio = Fraction(source.height, self.height)
        self._kept: tuple[int, Pixels] | None = None

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom`; those of the last call are not read again."""
        first = top
        parts: list[Pixels] = []
        if self._kept is not None:
            kept_top, kept = self._kept
            if kept_top <= top < kept_top + len(kept):
                parts.append(kept[top - kept_top : bottom - kept_top])
                first = top + len(parts[0])
        if first < bottom:
            parts.append(self._scaled(first, bottom))
        rows = cast(Pixels, parts[0] if len(parts) == 1 else np.concatenate(parts))
        self._kept = (top, rows)
        return rows

    def close(self) -> None:
        """Close the source."""
        self.source.close()

    def _scaled(self, top: int, bottom: int) -> Pixels:
        if (self.source.height, self.source.width) == (self.height, self.width):
            return self.source.read(top, bottom)
        group = self.ratio.denominator
        at_once = max(1, int(_AT_ONCE / self.source.width / self.ratio))
        if group > max(64, at_once):
            reduce, group = self._weighted, 1
        else:
            reduce = self._grouped
        step = max(group, at_once // group * group)
        begin = top // group * group
        parts = [
            reduce(row, min(row + step, -(-bottom // group) * group, self.height))
            for row in range(begin, bottom, step)
        ]
        return cast(Pixels, np.concatenate(parts)[top - begin : bottom - begin])

    def _grouped(self, top: int, bottom: int) -> Pixels:
        """Return rows that are whole groups."""
        above, below = int(top * self.ratio), int(bottom * self.ratio)
        return resize_area(self.source.read(above, below), (bottom - top, self.width))

    def _weighted(self, top: int, bottom: int) -> Pixels:
        """Return any rows; the last bit may differ from reducing the image whole."""
        edges = np.array([float(row * self.ratio) for row in range(top, bottom + 1)])
        above, below = int(edges[0]), min(self.source.height, int(np.ceil(edges[-1])))
        pixels = self.source.read(above, below)
        rows = np.arange(above, below)
        shared = np.minimum(edges[1:, None], rows + 1) - np.maximum(edges[:-1, None], rows)
        weights = (shared.clip(0) / float(self.ratio)).astype(np.float32)  # (new rows, rows)
        narrow = resize_area(cast(Any, pixels.astype(np.float32)), (len(pixels), self.width))
        mean = np.tensordot(weights, narrow, axes=1)  # (new rows, width, C)
        if pixels.dtype.kind != "f":
            mean = np.rint(mean)
        return cast(Pixels, mean.astype(pixels.dtype))


class MapReader:
    """A TIFF, read when its rows are asked for."""

    def __init__(self, path: Path, dataset: Any, wanted: ImageFormat, bands: list[int]) -> None:
        self.path = path
        self.height, self.width = dataset.height, dataset.width
        self._dataset = dataset
        self._wanted = wanted
        self._bands = bands

    @classmethod
    def open(cls, path: Path, wanted: ImageFormat, *, at_least: int = 0) -> MapReader | None:
        """Open the image in a file; None if it has fewer pixels, or only the whole can be read."""
        if not is_readable(path):
            return None
        with ExitStack() as stack:
            try:  # the reader of whole images says what is wrong
                dataset = stack.enter_context(open_map(path))
                is_large = dataset.height * dataset.width >= at_least
                bands = _choose_bands(path, dataset, wanted) if is_large else None
                if bands is None:
                    return None
                reader = cls(path, dataset, wanted, bands)
                reader.read(0, 1)  # can it be decoded?
            except Exception:
                return None
            stack.pop_all()
            return reader

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom`, with no-data pixels filled as `read_image` does."""
        with gdal(self.path):
            rows = self._dataset.read(self._bands, window=((top, bottom), (0, self.width)))
        pixels = cast(Pixels, np.ascontiguousarray(rows.transpose(1, 2, 0), self._wanted.dtype))
        if self._wanted.nodata is not None:
            nodata_mask = find_nodata(pixels, self._wanted.nodata)
            pixels[nodata_mask] = np.array(self._wanted.fill, pixels.dtype)
        refuse_not_finite(pixels, self.path)
        return pixels

    def close(self) -> None:
        """Close the file."""
        self._dataset.close()


RowReader = ArrayReader | ScaledReader | MapReader


def _choose_bands(path: Path, dataset: Any, wanted: ImageFormat) -> list[int] | None:
    """Return the bands that are the wanted channels; None if the whole image must be converted."""
    with open_tiff(path) as tiff:
        page = only_page(tiff, path, is_whole=False)
        has_alpha = bool(page.extrasamples) and page.extrasamples[-1] in _ALPHA
        is_plain = page.photometric.name in ("MINISBLACK", "RGB") or page.compression == _JPEG
        is_upright = page.tags.valueof(_ORIENTATION, default=1) == 1
        if not is_plain or not is_upright or page.bitspersample % 8 or page.imagedepth != 1:
            return None
    if {storage_dtype(np.dtype(name)) for name in dataset.dtypes} != {wanted.dtype}:
        return None
    if dataset.count == 1 and wanted.channels == 3:
        return [1, 1, 1]
    if dataset.count != wanted.channels + has_alpha:
        return None
    return list(range(1, wanted.channels + 1))
