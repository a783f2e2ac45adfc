"""Readers of images that need not fit into memory, at their own size or scaled down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unet_ddp.data.formats.arrays import only_page, open_tiff
from unet_ddp.data.formats.header import ImageFormat, Pixels, as_user_error
from unet_ddp.data.formats.read import find_nodata, refuse_not_finite
from unet_ddp.data.formats.resize import resize_area

_AT_ONCE = 1 << 24  # pixels that are scaled at a time
_CONTIGUOUS, _ALPHA = 1, (1, 2)  # of TIFF: planar configuration, extra samples
_ORIENTATION = 274  # tag of TIFF


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


class TiffReader:
    """A TIFF of any size: memory-mapped if its pixels are stored plainly, else decoded in part."""

    def __init__(
        self, path: Path, page: Any, wanted: ImageFormat, convert: Callable[[Pixels], Pixels]
    ) -> None:
        self.path = path
        self.height, self.width = page.imagelength, page.imagewidth
        self._wanted = wanted
        self._page = page
        self._convert = convert
        self._mapped: NDArray[Any] | None = None
        if page.is_memmappable:
            flat = page.parent.filehandle.memmap_array(
                page.parent.byteorder + page.dtype.char, page.shape, page.dataoffsets[0]
            )
            self._mapped = flat.reshape(self.height, self.width, -1)

    @classmethod
    def open(cls, path: Path, wanted: ImageFormat) -> TiffReader | None:
        """Open the one image in the file; return None if only the whole of it can be read."""
        with ExitStack() as stack:
            try:
                page = only_page(stack.enter_context(open_tiff(path)), path, is_whole=False)
                convert = _conversion(page, wanted)
                if convert is None:
                    return None
                reader = cls(path, page, wanted, convert)
                reader.read(0, 1)  # can it be decoded?
            except Exception:  # the reader of whole images says what is wrong
                return None
            stack.pop_all()
            return reader

    def read(self, top: int, bottom: int) -> Pixels:
        """Return the rows `top` to `bottom`, with no-data pixels filled as `read_image` does."""
        with as_user_error(self.path):
            rows = self._decode(top, bottom) if self._mapped is None else self._mapped[top:bottom]
        native = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
        pixels = self._convert(cast(Pixels, native))
        if self._wanted.nodata is not None:
            nodata_mask = find_nodata(pixels, self._wanted.nodata)
            if nodata_mask.any():
                pixels = pixels.copy()
                pixels[nodata_mask] = np.array(self._wanted.fill or 0, pixels.dtype)
        refuse_not_finite(pixels, self.path)
        return pixels

    def close(self) -> None:
        """Close the file."""
        self._mapped = None
        self._page.parent.close()

    def _decode(self, top: int, bottom: int) -> NDArray[Any]:
        """Return rows from all strips or tiles that overlap them."""
        page = self._page
        rows = np.zeros((bottom - top, self.width, page.samplesperpixel), page.dtype)
        height = page.tilelength if page.is_tiled else min(page.rowsperstrip, self.height)
        across = -(-self.width // page.tilewidth) if page.is_tiled else 1
        indices = list(range(top // height * across, -(-bottom // height) * across))
        segments = page.parent.filehandle.read_segments(
            [page.dataoffsets[n] for n in indices],
            [page.databytecounts[n] for n in indices],
            indices=indices,
        )
        for data, index in segments:
            decoded, place, shape = page.decode(data, index, jpegtables=page.jpegtables)
            y, x = place[2], place[3]
            if decoded is None:
                continue  # a sparse file: zeros
            tile = decoded[0, : shape[1], : min(shape[2], self.width - x)]
            upper, lower = max(top, y), min(bottom, y + len(tile))
            rows[upper - top : lower - top, x : x + tile.shape[1]] = tile[upper - y : lower - y]
        return rows


RowReader = ArrayReader | ScaledReader | TiffReader


def _conversion(page: Any, wanted: ImageFormat) -> Callable[[Pixels], Pixels] | None:
    """Return the conversion of samples to the wanted channels; None if it needs all pixels."""
    is_plain = page.photometric.name in ("MINISBLACK", "RGB") or page.compression.name == "JPEG"
    is_upright = page.tags.valueof(_ORIENTATION, default=1) == 1
    if str(page.dtype) != wanted.dtype or not is_plain or not is_upright:
        return None
    if page.planarconfig != _CONTIGUOUS or page.bitspersample % 8 or page.imagedepth != 1:
        return None
    samples, channels = page.samplesperpixel, wanted.channels
    has_alpha = bool(page.extrasamples) and page.extrasamples[-1] in _ALPHA
    if samples == channels and not has_alpha:
        return lambda pixels: pixels
    if samples == 1 and channels == 3:
        return lambda pixels: cast(Pixels, np.repeat(pixels, 3, axis=2))
    if has_alpha and samples == channels + 1:
        return lambda pixels: pixels[..., :-1]
    return None
