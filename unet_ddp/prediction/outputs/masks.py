"""A prediction as files: the mask, its probabilities, and a picture of it over the image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.formats.read import read_mask
from unet_ddp.data.formats.resize import scaled_size
from unet_ddp.data.labels import Labels
from unet_ddp.prediction.outputs.files import replacing
from unet_ddp.prediction.outputs.png import Kind, write_png
from unet_ddp.prediction.prediction import Prediction, allocate
from unet_ddp.prediction.predictor import SourceImage
from unet_ddp.prediction.streaming import ScaledRows

MASK_SUFFIXES = (".png", ".tif", ".tiff")
_FAST = 3  # zlib's level: half the time of Pillow's 6, files hardly larger
_TILE = 256
_PIXELS = 1 << 18  # of a band: as many as a core keeps at hand
_PICTURE = 4096  # pixels; the side to which overlays of larger images are reduced


def write_mask(prediction: Prediction, path: Path) -> None:
    """The mask in the training masks' own values, PNG or TIFF.

    Raises:
        UserError: it can't be written.
    """
    ids, labels = prediction.ids, prediction.labels
    with replacing(path) as half:
        if path.suffix.lower() == ".png":
            _write_png(ids, labels, half)
        else:
            _write_tiff(ids, labels, half)


def _bands(ids: NDArray[np.uint8], high: int) -> Iterator[NDArray[np.uint8]]:
    """Rows of it, for what takes several times the memory."""
    for top in range(0, len(ids), high):
        yield ids[top : top + high]


def _write_png(ids: NDArray[np.uint8], labels: Labels, path: Path) -> None:
    """As `labels.to_image` has it, with little memory and time."""
    first = labels.to_image(ids[:1])
    sample = np.asarray(first)
    palette = bytes(first.getpalette() or []) if first.mode == "P" else None
    kind = Kind.of(sample, palette, most=max(labels.values))
    high = max(1, _PIXELS // ids.shape[1])
    rows = (_values(band, labels) for band in _bands(ids, high))
    with path.open("wb") as file:
        write_png(file, rows, (ids.shape[0], ids.shape[1]), kind)


def _values(ids: NDArray[np.uint8], labels: Labels) -> NDArray[np.generic]:
    """`np.asarray(labels.to_image(ids))`, of 8-bit values in a tenth of the time."""
    if labels.rgb or max(labels.values) > 255:
        return np.asarray(labels.to_image(ids))
    if labels.num_classes == 2 and labels.values[0] == 0:
        return ids * np.uint8(labels.values[1])
    import cv2

    table = np.zeros(256, np.uint8)
    table[: labels.num_classes] = labels.values
    return cast(NDArray[np.generic], cv2.LUT(ids, table))


def _write_tiff(ids: NDArray[np.uint8], labels: Labels, path: Path) -> None:
    """Tile by tile, so that the mask may be larger than memory."""
    import tifffile

    first = labels.to_image(ids[:1])
    sample = np.asarray(first)
    how = {"RGB": "rgb", "P": "palette"}.get(first.mode, "minisblack")
    colours = None
    if how == "palette":
        flat = np.array(first.getpalette(), np.uint16)
        colours = np.pad(flat, (0, 768 - flat.size)).reshape(256, 3).T * 257
    tifffile.imwrite(
        path,
        (tile for band in _bands(ids, _TILE) for tile in _tiles(np.asarray(labels.to_image(band)))),
        shape=(*ids.shape, *sample.shape[2:]),
        dtype=sample.dtype,
        photometric=how,
        colormap=colours,
        tile=(_TILE, _TILE),
        compression="zlib",
        metadata=None,
    )


def _tiles(band: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
    """A band of rows from left to right, all tiles of full size."""
    for left in range(0, band.shape[1], _TILE):
        tile = band[:, left : left + _TILE]
        lack = (_TILE - tile.shape[0], _TILE - tile.shape[1])
        yield np.pad(tile, ((0, lack[0]), (0, lack[1]), *((0, 0),) * (band.ndim - 2)))


def read_ids(path: Path, labels: Labels) -> NDArray[np.uint8]:
    """The class ids (H, W) of a mask that is written already.

    Raises:
        UserError: it can't be read, or holds other values.
    """
    return labels.to_ids(read_mask(path), path)


def probability_paths(base: Path, kind: str, labels: Labels) -> list[Path]:
    """Where probabilities go beside `base`, the image's name without an ending."""
    if kind == "npy":
        return [base.with_name(f"{base.name}_probabilities.npy")]
    return [
        base.with_name(f"{base.name}_probability_{name.strip('#')}.png")
        for name in labels.class_names
    ]


def write_probabilities(prediction: Prediction, base: Path, kind: str) -> None:
    """Of each class a PNG of 16 bit, 65535 for 1; or all in one NPY file, (C, H, W) float32.

    Raises:
        UserError: they can't be written.
    """
    paths = probability_paths(base, kind, prediction.labels)
    shape = (prediction.labels.num_classes, *prediction.size)
    if kind == "npy":
        with replacing(paths[0]) as half:
            stored = np.lib.format.open_memmap(half, "w+", np.float32, shape)
            for top, band in prediction.probability_bands():
                stored[:, top : top + band.shape[1]] = band
            stored.flush()
        return
    deep = allocate(shape, np.uint16)
    for top, band in prediction.probability_bands():
        deep[:, top : top + band.shape[1]] = np.rint(band * 65535).astype(np.uint16)
    for path, plane in zip(paths, deep, strict=True):
        with replacing(path) as half:
            Image.fromarray(plane).save(half, format="PNG", compress_level=_FAST)


def write_overlay(prediction: Prediction, image: SourceImage, path: Path) -> None:
    """The image with the mask over it; one of more than 4096 pixels a side is reduced.

    Args:
        image: at its own size.

    Raises:
        UserError: it can't be written.
    """
    from unet_ddp.data.drawing import draw_mask, save_picture

    ids, size = prediction.ids, prediction.size
    if max(size) > _PICTURE:
        size = scaled_size(*size, _PICTURE / max(size))
        rows, columns = (
            (np.arange(n) + 0.5) * m / n for n, m in zip(size, prediction.size, strict=True)
        )
        ids = ids[rows.astype(int)[:, None], columns.astype(int)]
    pixels = ScaledRows(image.rows, size).read(0, size[0])
    with replacing(path) as half:
        save_picture(draw_mask(pixels, ids, prediction.labels), half)
