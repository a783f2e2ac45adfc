"""Image files of all kinds, drawn by chance and written by other libraries; NumPy says what they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image

rasterio = pytest.importorskip("rasterio", reason="the extra geo is not installed")


Array = np.ndarray
Draw = np.random.Generator

# The visual side that is the first row, and the first column, of what a file stores (TIFF 6.0).
SIDES = {
    1: ("top", "left"), 2: ("top", "right"), 3: ("bottom", "right"), 4: ("bottom", "left"),
    5: ("left", "top"), 6: ("right", "top"), 7: ("right", "bottom"), 8: ("left", "bottom"),
}  # fmt: skip


@dataclass(frozen=True)
class File:
    """A file, and what a reader must give."""

    path: Path
    about: str  # how it was written
    pixels: Array  # (H, W, C), upright; alpha, if any, is the last
    stored: Array  # (H, W, C), as they lie in the file
    alpha: bool = False
    indices: Array | None = None  # (H, W), upright, of a palette
    tolerance: int = 0  # of lossy files: from pixels that other libraries decode
    most: int = 0  # of pixels of less than 8 bits, which some readers stretch to 255


def lay(upright: Array, orientation: int) -> Array:
    """Return what a file of this orientation stores."""
    row, column = SIDES[orientation]
    stored = upright if row in ("top", "bottom") else upright.swapaxes(0, 1)
    stored = stored[::-1] if row in ("bottom", "right") else stored
    return np.ascontiguousarray(stored[:, ::-1] if column in ("bottom", "right") else stored)


def draw_pixels(draw: Draw, dtype: str, bands: int) -> Array:
    """Return pixels (H, W, C) of the type's whole range, of odd and even sizes."""
    shape = (*draw.integers(1, 40, 2).tolist(), bands)
    kind = np.dtype(dtype).newbyteorder("=")
    if kind.kind == "f":
        return draw.normal(0, 1000, shape).astype(kind)
    if kind.kind == "b":
        return draw.random(shape) < 0.5
    limits = np.iinfo(kind)
    return draw.integers(limits.min, limits.max, shape, kind, endpoint=True)


def pick(draw: Draw, *choices: Any) -> Any:
    return choices[int(draw.integers(len(choices)))]


# -- Pillow --------------------------------------------------------------------------------

_MODES = {"1": ("bool", 1), "L": ("uint8", 1), "LA": ("uint8", 2), "P": ("uint8", 1), "RGB": ("uint8", 3),
          "RGBA": ("uint8", 4), "CMYK": ("uint8", 4), "I;16": ("uint16", 1), "F": ("float32", 1)}  # fmt: skip
_BY_FORMAT = {
    "png": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "tif": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"),
    "bmp": ("1", "L", "P", "RGB"),
    "gif": ("L", "P"),
    "webp": ("RGB", "RGBA"),
    "jpg": ("L", "RGB", "CMYK"),
}


def by_pillow(draw: Draw, folder: Path) -> File:
    ending = pick(draw, "png", "tif", "tif", "bmp", "gif", "webp", "jpg")
    mode = pick(draw, *_BY_FORMAT[ending])
    dtype, bands = _MODES[mode]
    upright = draw_pixels(draw, dtype, bands)
    if ending == "jpg":  # smooth, or lossy decoders differ
        upright = cv2.resize(upright, (40, 24), interpolation=cv2.INTER_CUBIC).reshape(24, 40, -1)
    turns = ending in ("png", "tif", "jpg", "webp")
    orientation = pick(draw, *range(1, 9)) if turns else 1
    stored = lay(upright, orientation)
    image = Image.fromarray(
        stored.squeeze(2) if bands == 1 else stored, None if bands == 1 else mode
    )
    table = draw.integers(0, 256, (256, 3), np.uint8)
    if mode == "P":
        image.putpalette(table.tobytes())
    how: dict[str, Any] = {}
    if turns and orientation > 1:
        how["exif"] = Image.Exif()
        how["exif"][0x0112] = orientation
    if ending == "tif":
        known = [None, "tiff_adobe_deflate"] + ["tiff_lzw", "packbits"] * (mode != "CMYK")
        how["compression"] = pick(draw, *known)
    elif ending == "webp":
        how |= {"lossless": True, "exact": True}
        if draw.random() < 0.5:
            how["icc_profile"] = draw.bytes(9000)
    elif ending == "jpg":
        how |= {"quality": pick(draw, 75, 95), "subsampling": pick(draw, 0, 2)}
    path = folder / f"pillow.{ending}"
    image.save(path, **how)
    about = f"Pillow {mode} {ending} {stored.shape} orientation {orientation} {sorted(how)} {how.get('compression')}"
    if ending == "jpg":  # truth is what Pillow decodes
        with Image.open(path) as opened:
            stored = np.atleast_3d(np.asarray(opened.convert("RGB" if bands > 1 else "L")))
        return File(path, about, unlay(stored, orientation), stored, tolerance=3)
    if mode == "P":
        indices = upright[..., 0]
        return File(path, about, table[indices], table[stored[..., 0]], indices=indices)
    if mode == "CMYK":
        upright = np.asarray(Image.fromarray(upright, "CMYK").convert("RGB"))
    return File(path, about, upright, stored, alpha=mode in ("LA", "RGBA"), most=int(mode == "1"))


def unlay(stored: Array, orientation: int) -> Array:
    """Return the upright pixels: the one array that lies as `stored` does."""
    back = {6: 8, 8: 6}.get(orientation, orientation)
    return lay(stored, back)


# -- tifffile ------------------------------------------------------------------------------


def by_tifffile(draw: Draw, folder: Path) -> File:
    dtype = pick(
        draw,
        *[
            "uint8", "uint8", "uint16", "int8", "int16", "float16", "float32", "float64", "uint32",
            "int32", "bool",
        ],
    )  # fmt: skip
    bands = 1 if dtype == "bool" else pick(draw, 1, 1, 2, 3, 4, 5, 7, 33, 70)
    upright = draw_pixels(draw, dtype, bands)
    orientation = pick(draw, *range(1, 9))
    stored = lay(upright, orientation)
    how: dict[str, Any] = {"photometric": "minisblack", "byteorder": pick(draw, "<", ">")}
    is_planar = bands > 1 and draw.random() < 0.4
    how["bigtiff"] = bool(draw.random() < 0.2)
    if dtype != "bool":
        how["compression"] = pick(draw, None, "zlib")
        if draw.random() < 0.3:
            how["tile"] = (16, 32)
        elif how["compression"] is None or draw.random() < 0.5:
            how["rowsperstrip"] = pick(draw, 1, 7, 64)
    alpha = False
    if bands in (3, 4) and draw.random() < 0.6 and dtype != "bool":
        how["photometric"] = "rgb"
    rest = bands - (3 if how["photometric"] == "rgb" else 1)
    if rest:
        alpha = rest == 1 and draw.random() < 0.5
        how["extrasamples"] = ["unassalpha"] if alpha else ["unspecified"] * rest
    if bands > 1:
        how["planarconfig"] = "separate" if is_planar else "contig"
    written = stored[..., 0] if bands == 1 else np.moveaxis(stored, -1, 0) if is_planar else stored
    tags = [(274, 3, 1, orientation, True)]
    tifffile.imwrite(folder / "tifffile.tif", written, extratags=tags, metadata=None, **how)
    how["extrasamples"] = how.get("extrasamples", [])[:1]
    about = f"tifffile {dtype} {stored.shape} orientation {orientation} {how}"
    path, most = folder / "tifffile.tif", int(dtype == "bool")
    return File(path, about, upright, stored, alpha=alpha, most=most)


# -- OpenCV, GDAL, NumPy --------------------------------------------------------------------


def by_opencv(draw: Draw, folder: Path) -> File:
    ending, dtypes = pick(draw, ("png", ["uint8", "uint16"]), ("tif", ["uint8", "uint16", "float32", "int16"]),
                          ("bmp", ["uint8"]), ("webp", ["uint8"]))  # fmt: skip
    dtype = pick(draw, *dtypes)
    bands = pick(draw, *{"webp": (3, 4), "bmp": (1, 3)}.get(ending, (1, 3, 4)))
    pixels = draw_pixels(draw, dtype, bands)
    path = folder / f"opencv.{ending}"
    order = [2, 1, 0, 3][:bands] if bands > 1 else [0]
    flags = [cv2.IMWRITE_WEBP_QUALITY, 101] if ending == "webp" else []
    if ending == "webp" and bands == 4:
        pixels[..., 3] |= 1  # it forgets the colours of what none can see
    cv2.imwrite(str(path), pixels[..., order], flags)
    about = f"OpenCV {dtype} {ending} {pixels.shape}"
    return File(path, about, pixels, pixels, alpha=bands == 4 and ending != "tif")


def by_gdal(draw: Draw, folder: Path) -> File:
    dtype = pick(
        draw,
        *["uint8", "uint8", "uint16", "int16", "uint32", "int32", "float32", "float64", "int8"],
    )
    bands = pick(draw, 1, 1, 1, 2, 3, 4, 5, 12, 70)
    pixels = draw_pixels(draw, dtype, bands)
    how: dict[str, Any] = {"interleave": pick(draw, "band", "pixel")}
    how["compress"] = pick(draw, None, None, "lzw", "deflate", "packbits")
    if draw.random() < 0.4:
        how |= {"tiled": True, "blockxsize": 16, "blockysize": 32}
    if dtype == "uint8" and draw.random() < 0.2:
        how["nbits"] = pick(draw, 1, 2, 4)
        pixels >>= 8 - how["nbits"]
    how["photometric"] = "rgb" if bands == 3 and draw.random() < 0.5 else "minisblack"
    how["alpha"] = "unspecified"
    if bands in (2, 4) and draw.random() < 0.5:
        how["alpha"] = "yes"
    height, width = pixels.shape[:2]
    path = folder / "gdal.tif"
    how = {name: value for name, value in how.items() if value is not None}
    with rasterio.open(
        path, "w", driver="GTiff", height=height, width=width, count=bands, dtype=dtype, **how
    ) as file:
        file.write(np.moveaxis(pixels, -1, 0))
    about = f"GDAL {dtype} {pixels.shape} {how}"
    most = 2 ** how["nbits"] - 1 if "nbits" in how else 0
    with rasterio.open(path) as written:  # of grey bands, GDAL marks the second as alpha
        last = sorted(range(pixels.shape[2]), key=lambda k: written.colorinterp[k].name == "alpha")
    upright = pixels[..., last]
    return File(path, about, upright, pixels, alpha=how["alpha"] == "yes", most=most)


def by_palette(draw: Draw, folder: Path) -> File:
    """A TIFF of indices, by tifffile or GDAL."""
    path, table = folder / "palette.tif", draw.integers(0, 256, (256, 3), np.uint8)
    orientation = pick(draw, *range(1, 9))
    indices = draw_pixels(draw, "uint8", 1)[..., 0]
    stored = lay(indices, orientation)
    how: dict[str, Any]
    if draw.random() < 0.5:
        how = {"photometric": "palette", "colormap": table.T.astype(np.uint16) * 257}
        how |= {"extratags": [(274, 3, 1, orientation, True)]}
        tifffile.imwrite(path, stored, compression=pick(draw, None, "zlib"), **how)
    else:
        orientation, stored = 1, indices
        how = {"height": stored.shape[0], "width": stored.shape[1], "count": 1, "dtype": "uint8"}
        how |= {"photometric": "palette", "compress": pick(draw, "deflate", "lzw")}
        how |= {"tiled": True, "blockxsize": 16, "blockysize": 16}
        with rasterio.open(path, "w", driver="GTiff", **how) as file:
            file.write_colormap(1, dict(enumerate(table.tolist())))
            file.write(stored, 1)
    about = f"palette TIFF {indices.shape} orientation {orientation}"
    return File(path, about, table[indices], table[stored], indices=indices)


def by_numpy(draw: Draw, folder: Path) -> File:
    dtype = pick(
        draw,
        *["uint8", "uint16", ">u2", "int16", "float32", ">f4", "float64", "bool", "int32", "int8"],
    )
    bands = pick(draw, 1, 1, 3, 4, 5, 70)
    pixels = draw_pixels(draw, dtype, bands)
    height, width = pixels.shape[:2]
    layouts = ["(H, W)"] * (bands == 1) + ["(C, H, W)"] * (bands < min(height, width))
    layouts += ["(H, W, C)"] * (height >= min(width, bands))
    if not layouts:  # such an array can't be told from another
        return by_numpy(draw, folder)
    layout = pick(draw, *layouts)
    stored = {"(H, W)": pixels[..., 0], "(C, H, W)": np.moveaxis(pixels, -1, 0)}.get(layout, pixels)
    stored = stored.astype(dtype, order=pick(draw, "C", "F"))
    np.save(folder / "numpy.npy", stored)
    about, most = f"NumPy {dtype} {layout} {pixels.shape}", int(dtype == "bool")
    return File(folder / "numpy.npy", about, pixels, pixels, most=most)


WRITERS: list[Callable[[Draw, Path], File]] = [
    by_pillow, by_tifffile, by_opencv, by_gdal, by_palette, by_numpy,
]  # fmt: skip


# -- masks ---------------------------------------------------------------------------------

_COLOURS = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 128, 0], [0, 0, 192]], np.uint8)


def draw_ids(draw: Draw, classes: int, side: int = 96) -> Array:
    """Return class ids (H, W): ellipses on class 0, every class somewhere."""
    ids = np.zeros((side, side), np.uint8)
    for k in [*range(1, classes), *draw.integers(0, classes, 4).tolist()]:
        centre, axes = draw.integers(16, side - 16, 2).tolist(), draw.integers(8, 28, 2).tolist()
        cv2.ellipse(ids, centre, axes, float(draw.integers(180)), 0, 360, int(k), -1)
    ids[0, :classes] = np.arange(classes)
    return ids


def _blend(ids: Array, colours: Array, width: int) -> Array:
    """Return colours that are anti-aliased: each is the mean of `width` x `width` pixels."""
    shifts = [(y, x) for y in range(width) for x in range(width)]
    rolled = [np.roll(colours[ids], shift, (0, 1)).astype(np.float64) for shift in shifts]
    return np.round(np.mean(rolled, axis=0)).astype(np.uint8)


def _with_palette(ids: Array, colours: Array) -> Image.Image:
    image = Image.fromarray(ids)
    image.putpalette(colours.tobytes())
    return image


def _save(path: Path, pixels: Array, **how: Any) -> None:
    Image.fromarray(pixels).save(path, **how)


GREYS = np.array([0, 255, 100, 180, 40], np.uint8)
MASKS: dict[str, Callable[[Array, str, int], object]] = {
    "ids.png": lambda ids, path, k: _save(path, ids),
    "greys.png": lambda ids, path, k: _save(path, GREYS[ids]),
    "deep.png": lambda ids, path, k: _save(path, GREYS[ids].astype(np.uint16) * 257),
    "ids.tif": lambda ids, path, k: tifffile.imwrite(path, ids),
    "turned.tif": lambda ids, path, k: tifffile.imwrite(path, lay(ids, 6), extratags=[(274, 3, 1, 6, True)]),
    "float.tif": lambda ids, path, k: tifffile.imwrite(path, ids.astype(np.float32)),
    "share.tif": lambda ids, path, k: tifffile.imwrite(path, ids / np.float32(7)),
    "ids.npy": lambda ids, path, k: np.save(path, ids.astype(np.int64)),
    "bits.png": lambda ids, path, k: _save(path, ids > 0) if k == 2 else _save(path, ids),
    "some bits.png": lambda ids, path, k: _save(path, ids > 0) if k == 2 and path[-5] == "a" else _save(path, GREYS[ids]),
    "ids.bmp": lambda ids, path, k: _save(path, ids),
    "colours.bmp": lambda ids, path, k: _save(path, _COLOURS[ids]),
    "colours.png": lambda ids, path, k: _save(path, _COLOURS[ids]),
    "alpha.png": lambda ids, path, k: _save(path, np.dstack([_COLOURS[ids], 255 - ids])),
    "deep colours.tif": lambda ids, path, k: tifffile.imwrite(path, _COLOURS[ids].astype(np.uint16) * 257, photometric="rgb"),
    "colours.webp": lambda ids, path, k: _save(path, _COLOURS[ids], lossless=True, icc_profile=bytes(9000)),
    "lossy.webp": lambda ids, path, k: _save(path, _COLOURS[ids], quality=80),
    "palette.png": lambda ids, path, k: _with_palette(ids, _COLOURS).save(path),
    "palette.gif": lambda ids, path, k: _with_palette(ids, _COLOURS).save(path),
    "palette.tif": lambda ids, path, k: _with_palette(ids, _COLOURS).save(path),
    "greys.jpg": lambda ids, path, k: _save(path, GREYS[ids], quality=75),
    "fine greys.jpg": lambda ids, path, k: _save(path, GREYS[ids], quality=100),
    "colours.jpg": lambda ids, path, k: _save(path, _COLOURS[ids], quality=75),
    "fine colours.jpg": lambda ids, path, k: _save(path, _COLOURS[ids], quality=100, subsampling=0),
    "soft greys.png": lambda ids, path, k: _save(path, _blend(ids, GREYS[:, None].repeat(3, 1), 2)[..., 0]),
    "soft colours.png": lambda ids, path, k: _save(path, _blend(ids, _COLOURS, 3)),
    "soft steps.png": lambda ids, path, k: _save(path, _blend(ids, _COLOURS, 2)),
    "one-hot.npy": lambda ids, path, k: np.save(path, np.eye(k, dtype=np.uint8)[ids]),
    "one-hot first.npy": lambda ids, path, k: np.save(path, np.moveaxis(np.eye(k, dtype=bool)[ids], -1, 0)),
    "one-hot.tif": lambda ids, path, k: tifffile.imwrite(path, np.eye(k, dtype=np.uint8)[ids], photometric="minisblack", planarconfig="contig"),
}  # fmt: skip
