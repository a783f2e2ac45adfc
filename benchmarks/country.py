"""A synthetic country: scenes of any size, and what it takes to train on windows of them.

    python -m benchmarks.country FOLDER [--scenes 2] [--side 20000] [--window 512]

This writes FOLDER/imgs and FOLDER/masks, if they are not there: tiled GeoTIFFs with overviews, side by side in
UTM. Then it prints the time and memory of reading windows, against crops of whole images.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.memory import forget_peak, resident
from benchmarks.timing import describe_machine, new_parser, print_table
from unet_ddp.checks.check import prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import PreparedData, SegmentationDataset

METRES = 0.5  # of a pixel
STEP = 512  # pixels of a coarse field; a scene is written in bands of so many rows
SAMPLES = 60  # that are timed


def draw_bands(seed: int, side: int) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield an image (rows, side, 3) and its mask (rows, side) of 0, 1 and 2, in bands from the top.

    Smooth shapes of about 200 pixels, of two classes, a little brighter than the rest, and noise.
    """
    random = np.random.default_rng(seed)
    fields = random.standard_normal((2, side // 128 + 9, side // 128 + 9)).astype(np.float32)
    for top in range(0, side, STEP):
        rows = np.arange(top, min(top + STEP, side), dtype=np.float32) / 128 + 2
        columns = np.arange(side, dtype=np.float32) / 128 + 2
        grid = np.meshgrid(columns, rows)
        smooth = [cv2.remap(field, grid[0], grid[1], cv2.INTER_CUBIC) for field in fields]
        mask = (smooth[0] > 0.5).astype(np.uint8)
        mask[smooth[1] > 1] = 2
        noise = random.integers(0, 48, (*mask.shape, 3), dtype=np.uint8)
        yield noise + np.array([60, 100, 140], np.uint8)[mask][..., None], mask


def write_scene(folder: Path, number: int, side: int) -> None:
    """Write a scene and its mask as tiled GeoTIFFs with overviews."""
    import rasterio
    from rasterio.enums import Resampling

    place = rasterio.Affine(
        METRES, 0, 300_000 + 1.5 * number * side * METRES, 0, -METRES, 5_000_000
    )
    options = {
        "driver": "GTiff", "height": side, "width": side, "dtype": "uint8", "crs": "EPSG:32633",
        "transform": place, "tiled": True, "blockxsize": STEP, "blockysize": STEP,
        "compress": "deflate", "zlevel": 1, "bigtiff": "if_safer",
    }  # fmt: skip
    paths = [folder / kind / f"scene_{number}.tif" for kind in ("imgs", "masks")]
    with (
        rasterio.open(paths[0], "w", count=3, photometric="rgb", **options) as image,
        rasterio.open(paths[1], "w", count=1, **options) as mask,
    ):
        for band, (pixels, classes) in enumerate(draw_bands(number, side)):
            window = (band * STEP, band * STEP + len(classes)), (0, side)
            image.write(np.moveaxis(pixels, -1, 0), window=window)
            mask.write(classes, 1, window=window)
    for path in paths:
        with rasterio.open(path, "r+") as dataset:
            dataset.build_overviews([4, 16], Resampling.nearest)


def write_country(folder: Path, scenes: int, side: int) -> DataConfig:
    """Write the scenes that are not there yet, and return the set."""
    for kind in ("imgs", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(scenes):
        if not (folder / "masks" / f"scene_{number}.tif").exists():
            write_scene(folder, number, side)
    return DataConfig(images=str(folder / "imgs"), masks=str(folder / "masks"))


def read_samples(config: DataConfig, data: PreparedData) -> Callable[[int], object]:
    """Return a function that reads and augments the samples of an epoch, at most `SAMPLES`."""
    augmentation = Augmentation(
        data.format, config.augmentation, data.crop_size, seed=0, cut=data.cut
    )
    dataset = SegmentationDataset(
        data.split.training, data.labels, data.format, scale=1.0, augmentation=augmentation, draw=data.draw
    )  # fmt: skip
    order = np.random.default_rng(0).permutation(len(dataset))[:SAMPLES].tolist()
    return lambda epoch: [dataset[epoch, index] for index in order]


def write_tiles(folder: Path, config: DataConfig, window: int) -> DataConfig:
    """Write windows as plain files, as one would tile by hand."""
    import rasterio

    found = [(config.images, folder / "tiles" / "imgs"), (config.masks, folder / "tiles" / "masks")]
    for source, target in found:
        target.mkdir(parents=True, exist_ok=True)
        with rasterio.open(sorted(Path(source or "").glob("*.tif"))[0]) as dataset:
            for k in range(SAMPLES):
                top, left = divmod(k, 10)
                rows = top * window, (top + 1) * window
                tile = dataset.read(window=(rows, (left * window, (left + 1) * window)))
                profile = {"count": len(tile), "height": window, "width": window, "dtype": "uint8"}
                with rasterio.open(
                    target / f"{k}.tif",
                    "w",
                    driver="GTiff",
                    compress="deflate",
                    zlevel=1,
                    **profile,
                ) as tif:
                    tif.write(tile)
    return DataConfig(images=str(found[0][1]), masks=str(found[1][1]))


def measure(config: DataConfig) -> tuple[str, ...]:
    """Return the seconds to check a set, its samples a second, and the most memory of this process."""
    forget_peak()
    began = time.perf_counter()
    data = prepare_data(config, seed=0, parts=DATA_PARTS)
    checked = time.perf_counter() - began
    read = read_samples(config, data)
    read(0)
    began = time.process_time()  # other programs disturb it less
    read(1)
    rate = min(SAMPLES, len(data.split.training)) / (time.process_time() - began)
    return (
        f"{len(data.split.training):,}",
        f"{checked:.1f}",
        f"{rate:.1f}",
        f"{resident(peak=True) / 1e6:.0f}",
    )


def main(argv: list[str]) -> None:
    """Write the country, and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenes", type=int, default=2)
    parser.add_argument("--side", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=512)
    options = parser.parse_args(argv)
    plain = write_country(options.folder, options.scenes, options.side)
    plain = replace(plain, augmentation="overhead")
    windows = replace(plain, window=options.window, blocks=4)
    tiles = write_tiles(options.folder, plain, options.window)
    again = "windows, checked before"
    works = {
        "windows": windows,
        again: windows,
        "whole tiles": replace(tiles, augmentation="overhead"),
    }
    head = ("read as", "to train on", "s to check", "samples a CPU second", "MB at most")
    print_table(head, ((name, *measure(config)) for name, config in works.items()))
    print(describe_machine())


if __name__ == "__main__":
    main(sys.argv[1:])
