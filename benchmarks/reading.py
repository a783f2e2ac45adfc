"""Samples per second of one reading process, over the plain way of reading them.

    python -m benchmarks.reading [--images DIR --masks DIR] [--scale 0.5]

Carvana's form unless told: photographs of 1918x1280 as JPEG, masks as GIF. The plain way: Pillow
decodes, a bicubic resize, a division by 255, torch.from_numpy; the mask decoded and resized by the
nearest pixel. One thread each.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import cv2
import numpy as np
import torch
from PIL import Image

from benchmarks.timing import draw, machine, ratios, take_turns
from unet_ddp.config import DataConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.cache import SampleCache
from unet_ddp.data.checks.check import prepare_data
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.pairs import Pair

WIDTH, HEIGHT, IMAGES = 1918, 1280, 8  # Carvana's


def make_carvana(folder: Path) -> DataConfig:
    """Photographs and masks of Carvana's form."""
    images, masks = folder / "imgs", folder / "masks"
    images.mkdir()
    masks.mkdir()
    for n in range(IMAGES):
        pixels = draw(HEIGHT, WIDTH, n)
        Image.fromarray(pixels).save(images / f"car{n}.jpg", quality=90)
        car = 255 * (pixels[..., 0] > pixels.mean()).astype(np.uint8)
        Image.fromarray(car).save(masks / f"car{n}_mask.gif")
    return DataConfig(images=str(images), masks=str(masks))


def read_plainly(pair: Pair, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """As most programs of this kind read."""
    image = Image.open(pair.image)
    size = int(scale * image.width), int(scale * image.height)
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC)) / 255.0
    mask = np.asarray(Image.open(pair.mask).resize(size, Image.Resampling.NEAREST))
    return (
        torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float(),
        torch.from_numpy(mask.astype(np.int64)),
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images")
    parser.add_argument("--masks")
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        folders = DataConfig(images=options.images, masks=options.masks)
        config = folders if options.images else make_carvana(Path(home))
        show(measure(config, options.scale, options.turns))
    return 0


def measure(config: DataConfig, scale: float, turns: int) -> dict[str, list[float]]:
    """Seconds per sample of each way of reading, turn by turn."""
    data = prepare_data(config, seed=0, progress=lambda items, total: items)
    pairs = [*data.split.training, *data.split.validation][:IMAGES]
    photo = Augmentation.for_images(data.format, "photo", data.crop_size, seed=0)

    kept = SampleCache(data.labels, data.format, scale=scale, resize_masks=False)

    def dataset(
        augmentation: Augmentation | None, cache: SampleCache | None = None
    ) -> SegmentationDataset:
        return SegmentationDataset(
            pairs, data.labels, data.format, scale=scale, augmentation=augmentation, cache=cache
        )

    epochs = iter(range(9999))

    def read(samples: SegmentationDataset) -> None:
        epoch = next(epochs)
        for index in range(len(samples)):
            samples[epoch, index]

    plain, changed = dataset(None), dataset(photo)
    plain_kept, changed_kept = dataset(None, kept), dataset(photo, kept)
    works = {
        "the plain way": lambda: [read_plainly(pair, scale) for pair in pairs],
        "without augmentation": lambda: read(plain),
        "with --augmentation photo": lambda: read(changed),
        "from the cache, without": lambda: read(plain_kept),
        "from the cache, with": lambda: read(changed_kept),
    }
    for work in works.values():
        work()
    took = take_turns(list(works.values()), turns)
    return {
        name: [s / len(pairs) for s in seconds] for name, seconds in zip(works, took, strict=True)
    }


def show(took: dict[str, list[float]]) -> None:
    """One table."""
    print(machine())
    print("| one reading process | samples/s | over the plain way |\n|---|---|---|")
    plain = next(iter(took.values()))
    for name, seconds in took.items():
        print(f"| {name} | {1 / median(seconds):.1f} | {ratios(plain, seconds)} |")


if __name__ == "__main__":
    sys.exit(main())
