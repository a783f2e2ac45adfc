"""How long it takes to find, split and scan many pairs, and what a sample of them costs.

    python -m benchmarks.pairs

Tiny files, so that it is the number that counts: names are found and split, files are scanned for the
first time and from the cache, and one process reads the whole set three times while its memory is
watched.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unet_ddp.data.checks.scan import scan
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import SampleLoader
from unet_ddp.data.pairs import find_pairs
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.data.splits import split_pairs

EPOCHS = 3


def make_files(folder: Path, count: int) -> None:
    """`count` pairs of 16x16 pixels in groups of 16, as hard links to few files."""
    random_ = np.random.default_rng(0)
    for side, array in (
        ("imgs", random_.integers(0, 255, (16, 16, 3), dtype=np.uint8)),
        ("masks", random_.integers(0, 2, (16, 16), dtype=np.uint8)),
    ):
        (folder / side).mkdir(parents=True)
        first = folder / f"{side}.png"
        for number in range(count):
            if number % 10_000 == 0:  # a file has only so many names
                first.unlink(missing_ok=True)
                Image.fromarray(array).save(first)
            os.link(first, folder / side / f"car{number // 16:05d}_{number % 16:02d}.png")


def resident() -> float:
    """Megabytes of memory that this process alone has."""
    text = Path("/proc/self/smaps_rollup").read_text()
    own = ("Private_Clean", "Private_Dirty")
    return sum(int(x.split()[1]) for x in text.splitlines() if x.startswith(own)) / 1024


def timed(work: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def silent(items: Iterable[Any], total: int) -> Iterable[Any]:
    return items


def measure(folder: Path, count: int) -> list[str]:
    """A row of the table."""
    make_files(folder, count)
    find, pairs = timed(lambda: find_pairs(folder / "imgs", folder / "masks"))
    divide, split = timed(lambda: split_pairs(pairs, validation=10, seed=0))
    first, _ = timed(lambda: scan(pairs, progress=silent, workers=2))
    again, _ = timed(lambda: scan(pairs, progress=silent, workers=2))
    dataset = SegmentationDataset(split.training, Labels((0, 1)), ImageFormat(3), scale=1.0)
    dataset[0, 0]  # imports
    each = [
        timed(lambda k=k: dataset[0, k])[0] for k in range(0, len(dataset), len(dataset) // 500)
    ]
    grown = grow(dataset)
    return [
        f"{count:,}", f"{find:.2f} s", f"{divide:.2f} s", f"{first:.1f} s", f"{again:.2f} s",
        f"{statistics.median(each) * 1e3:.2f} ms", f"{', '.join(f'{held:.0f}' for held in grown)} MB", f"{peak():.0f} MB",
    ]  # fmt: skip


def peak() -> float:
    """Most megabytes that this process has held so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Watched(SegmentationDataset):
    """A data set that tells, with the last sample of an epoch, the memory of what reads it."""

    epoch_length, held, read = 0, 0, 0

    def _read(self, epoch: int, index: int) -> Any:
        sample = super()._read(epoch, index)
        self.read += 1
        if self.read % self.epoch_length == 0:  # looking takes some ten milliseconds
            self.held = int(resident() * 1024)
        return sample._replace(pair=sample.pair * 0 + self.held)


def grow(dataset: SegmentationDataset) -> list[float]:
    """Megabytes of a reading process alone, at the end of each epoch.

    Each of all samples: pathlib looks a file's name up among those that the process already has,
    which are its parent's, and counts one more reference to it. That copies the page it is on, once.
    """
    watched = Watched([], dataset.labels, dataset.format, scale=1.0)
    watched.images, watched.masks = dataset.images, dataset.masks
    sampler = TrainingSampler(len(dataset), 8, rank=0, size=1, seed=0)
    watched.epoch_length = len(sampler)
    gc.collect()
    loader = SampleLoader(watched, sampler, batch_size=8, workers=1)
    grown = []
    for epoch in range(EPOCHS):
        sampler.start_at(epoch, 0)
        for batch in loader:
            last = batch
        grown.append(int(last.pair[-1]) / 1024)
    return grown


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options = parser.parse_args(argv)
    heads = [
        "pairs",
        "find",
        "split",
        "first scan",
        "scan again",
        "a sample",
        "reader, epochs 1 to 3",
        "peak",
    ]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for count in options.counts:
        home = Path(tempfile.mkdtemp())
        os.environ["XDG_CACHE_HOME"] = str(home / "cache")
        try:
            print("| " + " | ".join(measure(home, count)) + " |", flush=True)
        finally:
            shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
