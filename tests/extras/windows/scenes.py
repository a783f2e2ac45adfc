"""Scenes of tests, and what windows of them are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tests.maps import write_map
from unet_ddp.checks.check import check_dataset
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.matching import Report, find_pairs
from unet_ddp.data.pairs import Pairs


def draw_scene(seed: int, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """An image (H, W, 3) and its mask (H, W) of 0 and 1: smooth shapes, a little brighter, under noise."""
    random = np.random.default_rng(seed)
    field = cv2.GaussianBlur(random.standard_normal((height, width)), None, 6)
    mask = (field > 0).astype(np.uint8)
    image = 100 + 60.0 * mask[..., None] + random.normal(0, 20, (height, width, 3))
    return image.clip(0, 255).astype(np.uint8), mask


def write_scenes(folder: Path, *sizes: tuple[int, int], **options: Any) -> Path:
    """Write scenes a, b, … as tiled GeoTIFFs, each at a place of its own."""
    for k, (height, width) in enumerate(sizes):
        image, mask = draw_scene(k, height, width)
        for kind, pixels in (("imgs", image), ("masks", mask)):
            write_map(folder / kind / f"{'abcdefgh'[k]}.tif", pixels, **TILED, **options)
    return folder


TILED = {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "deflate"}


def config_of(folder: Path, **settings: Any) -> DataConfig:
    return DataConfig(
        **{"images": str(folder / "imgs"), "masks": str(folder / "masks"), **settings}
    )


def find_windows(folder: Path, **settings: Any) -> tuple[Pairs, Report]:
    """The windows of a folder of scenes, and what was found."""
    report, config = Report(collects=True), config_of(folder, **settings)
    found = find_pairs(folder / "imgs", folder / "masks", report, config=config)
    return found, report


def check(folder: Path, **settings: Any) -> tuple[Any, Report]:
    """The checked data set of a folder of scenes, and what was found."""
    report = Report(collects=True)
    config = config_of(folder, **settings)
    return check_dataset(config, report, seed=1, parts=DATA_PARTS), report
