"""The grid of windows over each scene of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product

import numpy as np
from tqdm import tqdm

from unet_ddp.checks.metadata import ImageMetadata, MaskMetadata, ScannedPair
from unet_ddp.config import DataConfig
from unet_ddp.data.groups import find_groups
from unet_ddp.data.masks import Size
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import CLASSES_MARK, Pair, Pairs, find_stamp
from unet_ddp.data.readers.bands import ByWindows
from unet_ddp.data.readers.base import Header, ImageFormat, Pixels, as_user_error
from unet_ddp.data.readers.resize import find_nodata
from unet_ddp.distributed.device import usable_cores
from unet_ddp.errors import UnreachableError, UserError, count_of, hides_bars
from unet_ddp.extras.geo.checks import check_pairs
from unet_ddp.extras.geo.windows import Area, MapWindows
from unet_ddp.extras.windows.pairs import WindowPairs, find_unit
from unet_ddp.extras.windows.paths import Window, name_warped
from unet_ddp.extras.windows.reader import Decoded, WindowFile, open_scene
from unet_ddp.files import is_address

_LOOK = 16  # pixels on a side of a first look for data


@dataclass
class Grid:
    """The windows of a scene."""

    pair: Pair
    size: tuple[int, int]
    """(height, width) of the scene."""
    windows: list[Window]
    area: Area
    """The part of the scene that its mask covers."""
    fault: str = ""
    empty: int = 0
    """Windows without data, which are left out."""


def find_windows(scenes: Pairs, config: DataConfig, report: Report) -> Pairs:
    """Return the windows of all scenes, each a pair; a scene that can't be read is a problem.

    Raises:
        UserError: the scenes are no files, all are smaller than a window, or none is left to validate on.
    """
    size = config.window
    assert size is not None
    _check_kind(scenes)
    plan = partial(plan_scene, config=config)
    with ThreadPoolExecutor(usable_cores(logical=True)) as pool:
        bar = tqdm(
            pool.map(plan, scenes), "windows", len(scenes), leave=False, disable=hides_bars()
        )
        grids = list(bar)
    report.add_problems([grid.fault for grid in grids if grid.fault])
    grids = [grid for grid in grids if not grid.fault]
    if not grids:
        return WindowPairs()
    largest = max(grids, key=lambda grid: min(grid.size))
    if max(largest.size) < size:
        height, width = largest.size
        raise UserError(
            f"--window {size}: larger than every scene; the largest, {largest.pair.image}, is {width}x{height}; "
            f"use --window {max(32, min(largest.size) // 32 * 32)}"
        )
    _describe(grids, size, report)
    groups = _name_groups(scenes, config)
    found = [pair for grid in grids for pair in _list_pairs(grid, config, groups)]
    if config.val_images is None and config.validation:
        _check_division(found, scenes, config)
    return WindowPairs(sorted(found, key=lambda pair: pair.name))


def _check_kind(scenes: Pairs) -> None:
    """Raise a UserError if the pairs are not of one file each."""
    first = scenes[0] if scenes else None
    if scenes.scanned is not None:
        raise UserError("--window: the images of a pack are read whole; give folders of scenes")
    if first and CLASSES_MARK in first.mask.parts:
        raise UserError(
            f"--window: {first.mask} is a folder for each class; save the masks of a scene as one file"
        )
    if first and not (is_address(first.image) or first.image.is_file()):
        raise UserError(f"--window: {first.image} is no file; give a folder of scenes, or a list")


def _check_division(found: list[Pair], scenes: Pairs, config: DataConfig) -> None:
    """Raise a UserError if the windows can't be divided, or both a list and --blocks divide them."""
    if scenes.sides().any():
        if config.blocks is not None:
            raise UserError(
                f"--blocks {config.blocks}: the column split of {config.pairs_file} says what validates; use one of them"
            )
        return
    first = scenes[0].image
    if len({pair.group for pair in found}) > 1:
        return
    if config.blocks is not None:
        raise UserError(
            f"--blocks {config.blocks}: {first} is one block of so many windows, so none is left to train on; use a "
            "smaller number"
        )
    raise UserError(
        f"--window {config.window}: {first} is the only scene or group, so none is left to train on; use --blocks 4 to "
        "hold out blocks of it, --val-images, or --validation 0"
    )


def _name_groups(scenes: Pairs, config: DataConfig) -> dict[str, str]:
    """Return the group of each scene by its name; one that most scenes seem to be in is none."""
    groups = find_groups(scenes, config.group_pattern, 0)
    if groups.are_guessed and 2 * groups.largest[1] > len(scenes):
        return {name: name for name in scenes.names()}
    return dict(zip(scenes.names(), groups.labels(), strict=True))


def _describe(grids: list[Grid], size: int, report: Report) -> None:
    total = sum(len(grid.windows) for grid in grids)
    empty = sum(grid.empty for grid in grids)
    line = f"windows: {total:,} of {size}x{size} pixels in {count_of(len(grids), 'scene')}"
    if empty:
        line += f"; {empty:,} without data left out"
    report.notes.append(line)
    parts = [grid for grid in grids if grid.area != (0, 0, *grid.size)]
    if parts:
        top, left, bottom, right = parts[0].area
        height, width = parts[0].size
        report.notes.append(
            f"{count_of(len(parts), 'scene')} with a mask of another extent or grid, of which the part that it covers is "
            f"used, e.g. {right - left}x{bottom - top} of {width}x{height} pixels of {parts[0].pair.image}"
        )


def _list_pairs(grid: Grid, config: DataConfig, groups: dict[str, str]) -> Iterator[Pair]:
    """Yield a scene's windows as pairs; a block of them, or the scene, is a group."""
    pair, digits = grid.pair, len(str(max(grid.size)))
    for window in grid.windows:
        group = groups[pair.name]
        if config.blocks is not None and config.window is not None:
            side = config.blocks * config.window
            down, right = (window.top - grid.area[0]) // side, (window.left - grid.area[1]) // side
            group = f"{pair.name}, block {down}+{right}"
        name = f"{pair.name}#{window.top:0{digits}}+{window.left:0{digits}}"
        image, mask = window.of(pair.image), window.of(pair.mask)
        yield replace(pair, name=name, image=image, mask=mask, group=group)


def plan_scene(pair: Pair, config: DataConfig) -> Grid:
    """Return the grid over a scene, or over the part that its mask covers; or why there is none."""
    try:
        with as_user_error(pair.image):
            image = open_scene(pair.image)
        with as_user_error(pair.mask):
            mask = open_scene(pair.mask)
    except UnreachableError:
        raise
    except UserError:  # one window, so that the scan says it, or skips it
        return Grid(pair, (1, 1), [Window(0, 0, 1, 1)], (0, 0, 1, 1))
    try:
        pair, (top, left, bottom, right) = _match(pair, image, mask, find_unit(config.scale))
    except UserError as error:
        return Grid(pair, image.header.size, [], (0, 0, 0, 0), str(error))
    assert config.window is not None
    rows, columns = _cut(bottom - top, config.window), _cut(right - left, config.window)
    windows = [
        Window(top + y, left + x, y_end - y, x_end - x)
        for (y, y_end), (x, x_end) in product(rows, columns)
    ]
    nodata = image.header.nodata if config.nodata is None else config.nodata
    kept = windows
    if nodata is not None or image.header.has_alpha:
        kept = [window for window in windows if has_data(pair, window, nodata)]
    area = top, left, bottom, right
    return Grid(pair, image.header.size, kept, area, empty=len(windows) - len(kept))


def _cut(length: int, size: int) -> list[tuple[int, int]]:
    """Return the beginning and end of each window along a side; the last has half of a size to one and a half."""
    count = max(1, int(length / size + 0.5))
    return list(pairwise([*range(0, count * size, size), length]))


def _match(
    pair: Pair, image: ByWindows | Decoded, mask: ByWindows | Decoded, unit: int
) -> tuple[Pair, Area]:
    """Return a scene with a mask on its grid, and the part of it that the mask covers.

    Raises:
        UserError: they have different sizes or places, and no CRS by which to bring them together.
    """
    size, mask_size = image.header.size, mask.header.size
    is_alike = size == mask_size
    if not (isinstance(image, MapWindows) and isinstance(mask, MapWindows)):
        if is_alike:
            return pair, (0, 0, *size)
        raise UserError(_differ(pair, size, mask_size))
    unknown = (0, 0)
    about = ImageMetadata(image.header, unknown, "", place=image.place)
    about_mask = MaskMetadata(mask.header, unknown, (), (), mask.place)
    if is_alike and not check_pairs([ScannedPair(pair, about, about_mask)]):
        return pair, (0, 0, *size)
    if not (image.place and mask.place and image.place.crs and mask.place.crs):
        raise UserError(_differ(pair, size, mask_size))
    top, left, bottom, right = mask.find_area(image)
    top, left = -(-top // unit) * unit, -(-left // unit) * unit  # as a window of the whole begins
    if top >= bottom or left >= right:
        raise UserError(f"{pair.mask}: covers no part of its image {pair.image} on the map")
    stamp = pair.stamps[0] or find_stamp(pair.image)
    warped = replace(pair, mask=name_warped(pair.mask, pair.image, stamp))
    return warped, (top, left, bottom, right)


def _differ(pair: Pair, size: Size, mask_size: Size) -> str:
    return (
        f"{pair.mask} is {mask_size[1]}x{mask_size[0]}, its image {pair.image} {size[1]}x{size[0]}; give a mask of "
        "its size and place, or both as GeoTIFFs with a CRS, which are brought to one grid"
    )


def has_data(pair: Pair, window: Window, nodata: float | None) -> bool:
    """Return whether any pixel of a window of the image has data; True if it can't be read, as the scan says it."""
    scene = open_scene(pair.image)
    if isinstance(scene, MapWindows):
        try:
            some = scene.peek(window.rows, window.columns, _LOOK)
        except UserError:
            return True
        if _shows(some, scene.header, nodata):
            return True
    header = scene.header
    wanted = ImageFormat(header.channels + header.has_alpha, header.dtype)
    try:
        return _shows(WindowFile(window.of(pair.image)).read(wanted), header, nodata)
    except UserError:
        return True


def _shows(pixels: Pixels, header: Header, nodata: float | None) -> bool:
    """Return whether any pixel (H, W, C) is neither transparent nor without data."""
    is_empty = np.zeros(pixels.shape[:2], bool)
    if header.has_alpha:
        is_empty |= pixels[..., -1] == 0
        pixels = pixels[..., :-1]
    if nodata is not None:
        is_empty |= find_nodata(pixels, nodata)
    return not is_empty.all()
