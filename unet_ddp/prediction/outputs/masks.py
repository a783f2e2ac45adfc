"""A prediction as files: its mask, its probabilities, and the image with the mask over it.

What can't be written is a UserError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Band, Mask, allocate, reserve
from unet_ddp.data.readers.base import Place
from unet_ddp.data.readers.resize import resize_nearest
from unet_ddp.errors import UserError
from unet_ddp.files import replacing, write_errors
from unet_ddp.prediction.outputs.png import Kind, write_png
from unet_ddp.prediction.source import SourceImage

_ADVICE = "make room, or use another --output"
_PNG_LEVEL = 3  # of zlib: half the time of Pillow's 6, files hardly larger
_TILE = 256
_PIXELS = 1 << 18  # of a band: they fit into a core's cache
_REFUSED = str.maketrans(dict.fromkeys('/\\:*?"<>|', "_"))  # by file systems
_LONGEST_NAME = 60  # bytes of a class's name in a file's
_LARGEST_OVERLAY = 4096  # pixels; the longer side of a reduced overlay


def write_mask(mask: Mask, labels: Labels, path: Path, place: Place | None = None) -> None:
    """Write class ids (H, W) in the training masks' own values, or numbers, as PNG or TIFF.

    A TIFF gets the `place` of its image.

    Raises:
        UserError: it can't be written, or has too large values for a PNG.
    """
    if path.suffix.lower() == ".png" and mask.dtype.itemsize > 2:
        raise UserError(
            f"{path}: values up to {mask.max()}; a PNG has at most 65535: use --mask-format tif"
        )
    with write_errors(path, _ADVICE), replacing(path) as temporary:
        if path.suffix.lower() == ".png":
            _write_png(mask, labels, temporary)
        else:
            _write_tiff(mask, labels, temporary, has_colours=place is not None)
            if place is not None:
                place.write_to(temporary, labels.nodata_tag)


def _bands(ids: Mask, height: int) -> Iterator[Mask]:
    """Yield `height` rows at a time, for what takes several times their memory."""
    for top in range(0, len(ids), height):
        yield ids[top : top + height]


def _write_png(ids: Mask, labels: Labels, path: Path) -> None:
    """Write the pixels of `labels.to_image`."""
    sample = labels.to_image(ids[:1])
    palette = bytes(sample.getpalette() or []) if sample.mode == "P" else None
    kind = Kind.of(np.asarray(sample), palette, largest=max(labels.values))
    height = max(1, _PIXELS // ids.shape[1])
    rows = map(labels.to_values, _bands(ids, height))
    with path.open("wb") as file:
        write_png(file, rows, (ids.shape[0], ids.shape[1]), kind)


def _write_tiff(ids: Mask, labels: Labels, path: Path, *, has_colours: bool) -> None:
    """Write the pixels of `labels.to_image` in tiles, so that the mask may exceed the memory.

    With `has_colours`, grey values of 8 bit have a colour table too.
    """
    import tifffile

    first = labels.to_image(ids[:1])
    sample = np.asarray(first)
    photometric, colormap = "rgb" if sample.ndim == 3 else "minisblack", None
    if first.mode == "P" or (has_colours and first.mode == "L"):
        photometric, colormap = "palette", np.zeros((3, 256), np.uint16)
        colormap[:, labels.values] = np.array(labels.colours, np.uint16).T * 257
    tifffile.imwrite(
        path,
        (tile for band in _bands(ids, _TILE) for tile in _tiles(np.asarray(labels.to_image(band)))),
        shape=(*ids.shape, *sample.shape[2:]),
        dtype=sample.dtype,
        photometric=photometric,
        colormap=colormap,
        tile=(_TILE, _TILE),
        compression="zlib",
        metadata=None,
    )


def _tiles(band: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the tiles of a band from left to right, padded to full size."""
    for left in range(0, band.shape[1], _TILE):
        tile = band[:, left : left + _TILE]
        missing = (_TILE - tile.shape[0], _TILE - tile.shape[1])
        yield np.pad(tile, ((0, missing[0]), (0, missing[1]), *((0, 0),) * (band.ndim - 2)))


def probability_paths(base: Path, kind: str, labels: Labels) -> list[Path]:
    """Return the files of probabilities: none, one npy, or one png per class.

    Their names start with `base`, a path without suffix.
    """
    if kind == "npy":
        return [base.with_name(f"{base.name}_probabilities.npy")]
    names = _clean(labels.class_names) if kind == "png" else []
    return [base.with_name(f"{base.name}_probability_{name}.png") for name in names]


def _clean(class_names: list[str]) -> list[str]:
    """Return the names as parts of file names, with the class ids before them if two were equal."""
    kept = (name.strip("#").translate(_REFUSED) for name in class_names)
    names = ["".join(c if c.isprintable() else "_" for c in name) for name in kept]
    names = [name.encode()[:_LONGEST_NAME].decode(errors="ignore") for name in names]
    if len({name.casefold() for name in names}) < len(names):
        return [f"{k}_{name}" for k, name in enumerate(names)]
    return names


@contextmanager
def writing_probabilities(
    paths: list[Path], shape: tuple[int, int, int]
) -> Iterator[Callable[[Band], None]]:
    """Yield what takes in bands; at the end there is one NPY file, or a 16-bit PNG for each class.

    The files contain `shape` (C, H, W) probabilities: float32, or 65535 for 1.
    """
    if paths[0].suffix == ".npy":
        with write_errors(paths[0], _ADVICE), replacing(paths[0]) as temporary:
            stored = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            with temporary.open("r+b") as file:
                reserve(file.fileno())
            yield partial(_keep, stored)
            stored.flush()
        return
    planes = allocate(shape, np.uint16)
    yield partial(_keep_rounded, planes)
    for path, plane in zip(paths, planes, strict=True):
        with write_errors(path, _ADVICE), replacing(path) as temporary:
            Image.fromarray(plane).save(temporary, format="PNG", compress_level=_PNG_LEVEL)


def _keep(stored: NDArray[np.float32], band: Band) -> None:
    stored[:, band.rows] = band.probabilities


def _keep_rounded(planes: NDArray[np.uint16], band: Band) -> None:
    planes[:, band.rows] = np.rint(band.probabilities * 65535).astype(np.uint16)


def write_overlay(mask: Mask, labels: Labels, image: SourceImage, path: Path) -> None:
    """Write an image with its mask, or the outlines of numbered objects, over it.

    One of more than 4096 pixels a side is reduced.
    """
    from unet_ddp.data.drawing import draw_mask, save_picture

    pixels = image.read_reduced(_LARGEST_OVERLAY)
    if pixels.shape[:2] != image.size:
        mask = resize_nearest(mask, pixels.shape[:2])
    with write_errors(path, _ADVICE), replacing(path) as temporary:
        save_picture(draw_mask(pixels, labels.layer(mask), labels), temporary)
