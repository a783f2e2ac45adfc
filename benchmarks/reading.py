"""Samples per second of one reading process, over the plain way of reading them.

    python -m benchmarks.reading [--images DIR --masks DIR] [--scale 0.5] [--storage]

By default Carvana's form: photographs of 1918x1280 as JPEG, masks as GIF. The plain way: Pillow
decodes, a bicubic resize, a division by 255, torch.from_numpy; the mask decoded and resized by the
nearest pixel. One thread each. Crops are of 256x256, at scales from 0.5 to 2, once by resizing the whole
image. With --storage also by a run's loader, of files and of shards, from the disk and from moto's S3
server (Python) in a process of its own on this machine, whose time counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.images import draw
from benchmarks.timing import machine, new_parser, print_table, take_turns
from tests.object_store import put_folder, running_store
from unet_ddp.checks.check import check_dataset, prepare_data
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.loaders import SampleLoader
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pair, collect
from unet_ddp.data.readers.base import Pixels
from unet_ddp.data.readers.resize import resize_area, resize_nearest, scaled_size
from unet_ddp.data.samplers import ScoringSampler
from unet_ddp.extras.cache.samples import SampleCache
from unet_ddp.extras.cloud import Url
from unet_ddp.extras.packs.command import write_pack
from unet_ddp.extras.packs.pairs import open_pack
from unet_ddp.extras.sampling.cuts import cut_sample
from unet_ddp.files import as_path, cache_folder

WIDTH, HEIGHT, IMAGES = 1918, 1280, 8  # Carvana's


def make_carvana(folder: Path) -> DataConfig:
    """Write photographs and masks of Carvana's form."""
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
    """Read a pair as most programs of this kind do."""
    image = Image.open(pair.image)
    size = int(scale * image.width), int(scale * image.height)
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC)) / 255.0
    mask = np.asarray(Image.open(pair.mask).resize(size, Image.Resampling.NEAREST))
    return (
        torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float(),
        torch.from_numpy(mask.astype(np.int64)),
    )


def resize_whole(image: Pixels, mask: NDArray[np.uint8], **key: int | None) -> Any:
    """Return image and mask at a random scale, as most programs make them before they crop."""
    scale = 2 ** np.random.default_rng([key["epoch"] or 0, key["index"] or 0]).uniform(-1, 1)
    size = scaled_size(*mask.shape, scale)
    return resize_area(image, size), resize_nearest(mask, size)


def ways_to_read(config: DataConfig, scale: float) -> tuple[int, dict[str, Callable[[], object]]]:
    """Return the number of pairs, and functions that read all of them."""
    data = prepare_data(config, parts=DATA_PARTS, seed=0)
    pairs = collect([*data.split.training, *data.split.validation][:IMAGES])
    photo = Augmentation(data.format, "photo", data.crop_size, seed=0)
    folder = cache_folder() or Path()
    cache = SampleCache(folder, data.labels, data.format, scale=scale, resize_masks=False)
    crops = partial(Augmentation, data.format, "none", (256, 256), seed=0)
    plain = crops()
    epochs = count()

    def reader(augmentation: Any, cache: SampleCache | None = None) -> Callable[[], object]:
        samples = SegmentationDataset(
            pairs, data.labels, data.format, scale=scale, augmentation=augmentation, store=cache
        )
        return lambda: [samples[epoch, k] for epoch in [next(epochs)] for k in range(len(samples))]

    return len(pairs), {
        "the plain way": lambda: [read_plainly(pair, scale) for pair in pairs],
        "without augmentation": reader(None),
        "with --augmentation photo": reader(photo),
        "from the cache, without": reader(None, cache),
        "from the cache, with": reader(photo, cache),
        "from the cache, crops": reader(plain, cache),
        "from the cache, crops at --scale-jitter 0.5 2": reader(
            crops(cut=partial(cut_sample, (0.5, 2.0))), cache
        ),
        "from the cache, the whole image at a random scale, then the crop": reader(
            lambda *arrays, **key: plain(*resize_whole(*arrays, **key), **key), cache
        ),
    }


def ways_to_load(config: DataConfig, scale: float, folder: Path) -> dict[str, Callable[[], object]]:
    """Return functions that load all pairs in batches of four, from the disk and from storage.

    As files and as shards, which are written to `folder`.
    """
    url = Url("s3://bucket/reading")
    folders = {"images": config.images, "masks": config.masks}
    placed = {key: str(put_folder(Path(str(name)), url / key)) for key, name in folders.items()}
    places = {"disk": config, "an S3 server": DataConfig(**placed)}
    checked = check_dataset(config, Report(), parts=DATA_PARTS, seed=0)
    assert checked is not None
    (folder / "pack").mkdir()
    for name, shards in (("the disk", folder / "pack"), ("an S3 server", Url("s3://bucket/pack"))):
        write_pack(shards, checked, config)
        places[f"shards on {name}"] = DataConfig(images=str(shards))
    ways = {}
    for name, place in places.items():
        data = prepare_data(place, parts=DATA_PARTS, seed=0)
        pairs = collect([*data.split.training, *data.split.validation][:IMAGES])
        if place.masks is None:
            pairs = open_pack(as_path(str(place.images)))[:IMAGES]
        samples = SegmentationDataset(pairs, data.labels, data.format, scale=scale)
        sampler = ScoringSampler(len(pairs), rank=0, size=1)
        loader = SampleLoader(samples, sampler, batch_size=4, workers=0)
        ways[f"a run's loader, from {name}"] = partial(list, loader)
    return ways


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--images")
    parser.add_argument("--masks")
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--storage", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        os.environ["XDG_CACHE_HOME"] = home
        folders = DataConfig(images=options.images, masks=options.masks)
        config = folders if options.images else make_carvana(Path(home))
        pairs, works = ways_to_read(config, options.scale)
        if options.storage:
            os.environ.update(stack.enter_context(running_store()).environment)
            works |= ways_to_load(config, options.scale, Path(home))
        took = take_turns(works, options.turns)
    print(machine())
    plain = took["the plain way"]
    print_table(
        ("one reading process", "samples/s", "over the plain way"),
        [(name, f"{pairs / turns.median:.1f}", plain.over(turns)) for name, turns in took.items()],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
