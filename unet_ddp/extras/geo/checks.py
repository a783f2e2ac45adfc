"""Sets of maps: a mask lies where its image does, and all images have one ground resolution."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unet_ddp.data.readers.base import Scene
from unet_ddp.data.readers.pillow import identify
from unet_ddp.data.readers.read import Source, find_reader
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.errors import UserError, count_of, how_to_install, print_lines
from unet_ddp.extras.formats.tiff import TiffFile
from unet_ddp.extras.geo.maps import Place
from unet_ddp.files import is_address
from unet_ddp.storage import real_file

if TYPE_CHECKING:
    from unet_ddp.checks.metadata import ScannedPair
    from unet_ddp.checks.table import Table
    from unet_ddp.config import DataConfig
    from unet_ddp.data.masks import Size
    from unet_ddp.data.pairs import Pair

_PIXEL_SCALE = 33550  # tag of a GeoTIFF
_BY_POINTS = "ground control points"
_MOST_OPEN = 64  # files
_FAR = 0.1  # of an image's pixel: a mask's corner may be elsewhere by so much
_ALIKE = 1.01  # ratio up to which ground resolutions are one


# -- images to predict ---------------------------------------------------------------------


def find_places(sources: Sequence[Source], metres: float | None) -> set[Source]:
    """Return the images that have map coordinates; those in storage are not asked.

    The first maps stay open: predicting them need not open them again.

    Raises:
        UserError: their ground resolutions differ, and the network's, `metres`, is None.
    """
    maps = []
    for source in sources:
        if issubclass(find_reader(source.path), Scene) and not is_address(source.path):
            maps.append(source)
    with ThreadPoolExecutor() as pool:
        places = dict(zip(maps, pool.map(_find_place, maps, count()), strict=False))
    if maps and not find_spec("rasterio"):
        path = maps[0].path
        with suppress(Exception), identify(path) as image:  # unreadable: reading it says why
            if _PIXEL_SCALE in image.getexif():
                command = how_to_install("geo")
                print_lines(f"warning: {path}: its mask gets no map coordinates without {command}")
    _warn_of_points([source.path for source, place in places.items() if place is _BY_POINTS])
    found = {source: place for source, place in places.items() if isinstance(place, Place)}
    if metres is None:
        check_resolutions((place.resolution, source.path) for source, place in found.items())
    return {*found}


def _find_place(source: Source, index: int) -> Place | str | None:
    """Return the place of an image, or _BY_POINTS; None if it has none."""
    place: Place | str | None = source.place
    if place is None:
        with suppress(UserError), source.reading() as opened:
            if isinstance(opened, TiffFile) and opened.layout.has_points:
                place = _BY_POINTS
    if not isinstance(place, Place) or index >= _MOST_OPEN:
        source.close()
    return place


def _warn_of_points(images: Sequence[Path]) -> None:
    """Print a warning of images that lie on a map by control points."""
    if images:
        print_lines(
            f"warning: {count_of(len(images), 'image')} placed by ground control points, which are not read, e.g. "
            f"{images[0]}: no place on a map for masks and polygons; first use gdalwarp "
            f"{shlex.quote(str(images[0]))} NEW.tif"
        )


# -- pairs to train on ---------------------------------------------------------------------


def check_pairs(scanned: Sequence[ScannedPair]) -> list[str]:
    """Return a line for each mask that is elsewhere on the map than its image."""
    lines = []
    for pair, image, mask in scanned:
        if image.place is not None and mask.place is not None:
            places = Place(*image.place), Place(*mask.place)
            lines.append(compare_places(pair, *places, image.header.size, mask.header.size))
    return [*filter(None, lines)]


def compare_places(pair: Pair, place: Place, mask_place: Place, size: Size, mask_size: Size) -> str:
    """Return why a mask of a size (height, width) is elsewhere on the map than its image; nothing if it is not."""
    corners = place.corners(size)
    mask_corners = mask_place.corners(mask_size)
    side = np.hypot(*(corners[1] - corners[0])) / size[1]  # of a pixel
    far = float(np.abs(mask_corners - corners).max() / side)
    if _differ(place.crs, mask_place.crs):
        fault = f"{pair.mask}: its CRS is not that of {pair.image}"
    elif far > _FAR:
        fault = f"{pair.mask} lies {far:.3g} pixels off its image {pair.image} on the map"
    else:
        return ""
    return f"{fault}; {how_to_warp(pair)}"


def how_to_warp(pair: Pair) -> str:
    """Return how to make a mask on the grid of its image."""
    words = "rio", "warp", str(pair.mask), "NEW.tif", "--like", str(pair.image)
    return f"use {shlex.join(words)}"


def _differ(one: str, other: str) -> bool:
    """Return whether two CRS are known and not one on the ground; heights may be counted in other ways."""
    if one == other or not one or not other:
        return False
    from rasterio.crs import CRS

    found = []
    for each in (one, other):
        crs = CRS.from_wkt(each)
        parts = crs.to_dict(projjson=True).get("components")
        found.append(CRS.from_string(json.dumps(parts[0])) if parts else crs)
    return bool(found[0] != found[1])


def check_kinds(config: DataConfig, table: Table) -> Table:
    """Return the table, with the files' sizes at --ground-resolution if that is given.

    Raises:
        UserError: an image's resolution is not known, or too coarse, or they have different ones.
    """
    wanted, kinds = config.ground_resolution, []
    if wanted is None:
        check_resolutions(
            (k.image.ground_resolution, real_file(pair.image)) for k, _, pair in table.groups
        )
        return table
    for kind, _, pair in table.groups:
        path = real_file(pair.image)
        if not kind.image.ground_resolution:
            raise UserError(
                f"--ground-resolution: {path} has no map coordinates with a CRS; to read them "
                f"needs {how_to_install('geo')}"
            )
        scale = ground_scale(path, kind.image.ground_resolution, config.scale, wanted)
        headers = []
        for header in (kind.image, kind.mask):
            height, width = scaled_size(*header.size, scale / config.scale)
            headers.append(replace(header, height=height, width=width))
        kinds.append(replace(kind, image=headers[0], mask=headers[1]))
    return replace(table, kinds=kinds)


def check_resolutions(found: Iterable[tuple[float | None, Path]]) -> None:
    """Raise UserError if known ground resolutions, with an image of each, differ."""
    known = [(own, path) for own, path in found if own]
    if not known:
        return
    finest, one = min(known)
    coarsest, other = max(known)
    if coarsest > finest * _ALIKE:
        raise UserError(
            f"{one} has pixels of {finest:g} m on the ground, {other} of {coarsest:g} m; bring all "
            f"to one with --ground-resolution {coarsest:g}"
        )


def ground_scale(path: Path, own: float | None, scale: float, resolution: float) -> float:
    """Return the scale at which pixels of `own` metres become pixels of `resolution` metres at `scale`.

    For an image without a known resolution, or with one that is equal but for rounding, it is `scale`.

    Raises:
        UserError: its pixels are larger already.
    """
    if not own or 1 / _ALIKE <= own / resolution <= _ALIKE:
        return scale
    finest = own * scale
    if finest > resolution * _ALIKE:
        raise UserError(
            f"{real_file(path)}: pixels of {own:g} m on the ground, the network takes {resolution / scale:g} m; "
            f"images are never enlarged; use --ground-resolution {finest:g} or more, or give finer images"
        )
    return min(1.0, finest / resolution)
