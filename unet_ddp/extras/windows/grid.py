"""The grid of windows over each scene of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from unet_ddp.config import DataConfig
from unet_ddp.data.groups import find_groups
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import CLASSES_MARK, Pair, Pairs
from unet_ddp.data.readers.bands import ByWindows
from unet_ddp.data.readers.base import Header, ImageFormat, Pixels, as_user_error
from unet_ddp.data.readers.resize import find_nodata
from unet_ddp.distributed.device import usable_cores
from unet_ddp.errors import UnreachableError, UserError, count_of, hides_bars
from unet_ddp.extras.geo.checks import compare_places, how_to_warp
from unet_ddp.extras.geo.windows import MapWindows
from unet_ddp.extras.windows.pairs import WindowPairs
from unet_ddp.extras.windows.paths import Window
from unet_ddp.extras.windows.reader import Decoded, WindowFile, open_scene
from unet_ddp.files import is_address

_LOOK = 16  # pixels on a side of a first look for data


class Grid(NamedTuple):
    """The windows of a scene, or why there are none."""

    pair: Pair
    windows: Sequence[Window] = ()
    empty: int = 0  # windows without data, which are left out
    fault: str = ""


def find_windows(scenes: Pairs, config: DataConfig, report: Report) -> Pairs:
    """Return the windows of all scenes, each a pair; a scene that can't be read is a problem.

    Raises:
        UserError: the scenes are no files, or none is left to validate on.
    """
    _check_kind(scenes)
    plan = partial(plan_scene, config=config)
    with ThreadPoolExecutor(usable_cores(logical=True)) as pool:
        planned = pool.map(plan, scenes)
        grids = list(tqdm(planned, "windows", len(scenes), leave=False, disable=hides_bars()))
    report.add_problems([grid.fault for grid in grids if grid.fault])
    groups = _name_groups(scenes, config)
    found = [pair for grid in grids for pair in _list_pairs(grid, config, groups)]
    side, empty = config.window, sum(grid.empty for grid in grids)
    left_out = f"; {empty:,} without data left out" if empty else ""
    scenes_read = count_of(sum(not grid.fault for grid in grids), "scene")
    report.notes.append(
        f"windows: {len(found):,} of {side}x{side} pixels in {scenes_read}{left_out}"
    )
    if not found:
        return WindowPairs()
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
    first, has_sides = scenes[0].image, scenes.sides().any()
    if config.blocks is not None and (has_sides or scenes.groups() is not None):
        column = "split" if has_sides else "group"
        raise UserError(
            f"--blocks {config.blocks}: the column {column} of {config.pairs_file} divides the scenes; use one of them"
        )
    if has_sides or len({pair.group for pair in found}) > 1:
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


def _list_pairs(grid: Grid, config: DataConfig, groups: dict[str, str]) -> Iterator[Pair]:
    """Yield a scene's windows as pairs; a block of them, or the scene, is a group."""
    pair = grid.pair
    for window in grid.windows:
        group = groups[pair.name] or "no group"  # one, as of whole images
        if config.blocks is not None and config.window is not None:
            side = config.blocks * config.window
            group = f"{pair.name}, block {window.top // side}+{window.left // side}"
        name = f"{pair.name}#{window.top:06}+{window.left:06}"
        image, mask = window.of(pair.image), window.of(pair.mask)
        yield replace(pair, name=name, image=image, mask=mask, group=group)


def plan_scene(pair: Pair, config: DataConfig) -> Grid:
    """Return the grid over a scene, or why there is none."""
    size = config.window
    assert size is not None
    try:
        with as_user_error(pair.image):
            image = open_scene(pair.image)
        with as_user_error(pair.mask):
            mask = open_scene(pair.mask)
    except UnreachableError:
        raise
    except UserError:  # one window, so that the scan says it, or skips it
        return Grid(pair, [Window(0, 0, 1, 1)])
    if fault := _compare(pair, image, mask):
        return Grid(pair, fault=fault)
    cells = product(*(_cut(length, size) for length in image.header.size))
    windows = [Window(y, x, y_end - y, x_end - x) for (y, y_end), (x, x_end) in cells]
    nodata = image.header.nodata if config.nodata is None else config.nodata
    has_mask = isinstance(image, MapWindows) and image.has_mask
    if nodata is None and not image.header.has_alpha and not has_mask:
        return Grid(pair, windows)
    kept = [window for window in windows if has_data(pair, window, nodata)]
    return Grid(pair, kept, len(windows) - len(kept))


def _cut(length: int, size: int) -> list[tuple[int, int]]:
    """Return the beginning and end of each window along a side; the last has half of a size to one and a half."""
    count = max(1, int(length / size + 0.5))
    return list(pairwise([*range(0, count * size, size), length]))


def _compare(pair: Pair, image: ByWindows | Decoded, mask: ByWindows | Decoded) -> str:
    """Return why a mask is not on the grid of its image; nothing if it is."""
    size, mask_size = image.header.size, mask.header.size
    remedy = "give a mask of its size"
    places = [each.place for each in (image, mask) if isinstance(each, MapWindows)]
    if len(places) == 2 and places[0] and places[1]:
        remedy = how_to_warp(pair)
        if size == mask_size:
            return compare_places(pair, places[0], places[1], size, size)
    if size == mask_size:
        return ""
    return f"{pair.mask} is {mask_size[1]}x{mask_size[0]}, its image {pair.image} {size[1]}x{size[0]}; {remedy}"


def has_data(pair: Pair, window: Window, nodata: float | None) -> bool:
    """Return whether any pixel of a window of the image has data; True if it can't be read, as the scan says it."""
    scene = open_scene(pair.image)
    header = scene.header
    wanted = ImageFormat(header.channels + header.has_alpha, header.dtype)
    try:
        if isinstance(scene, MapWindows):
            if scene.is_masked(window.rows, window.columns):
                return False
            if _shows(scene.read_window(window.rows, window.columns, _LOOK), header, nodata):
                return True
        return _shows(WindowFile(window.of(pair.image)).read(wanted), header, nodata)
    except UserError:
        return True


def _shows(pixels: Pixels, header: Header, nodata: float | None) -> bool:
    """Return whether any pixel (H, W, C) is neither transparent nor without data."""
    is_empty = np.zeros(pixels.shape[:2], bool)
    if pixels.shape[2] > header.channels:
        is_empty |= pixels[..., -1] == 0
        pixels = pixels[..., :-1]
    if nodata is not None:
        is_empty |= find_nodata(pixels, nodata)
    return not is_empty.all()
