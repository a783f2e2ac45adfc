"""The time to find, split and scan many pairs, and the cost of a sample of them.

    python -m benchmarks.pairs

Tiny files, so that their number is what counts: names are matched and split, files are scanned for
the first time and from the cache, and one process reads the whole set three times while its memory
is watched.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from benchmarks.timing import new_parser, print_table
from unet_ddp.data.checks.scan import scan
from unet_ddp.data.dataset import Sample, SegmentationDataset
from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import SampleLoader
from unet_ddp.data.pairs import find_pairs
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.data.splits import split_pairs

Result = TypeVar("Result")

EPOCHS, BATCH = 3, 8
HEADS = (
    "pairs", "find", "split", "first scan", "scan again", "a sample", "reader, epochs 1 to 3", "peak",
)  # fmt: skip


def make_files(folder: Path, count: int) -> None:
    """Write `count` pairs of 16x16 pixels in groups of 16, as hard links to few files."""
    random = np.random.default_rng(0)
    for side, array in (
        ("imgs", random.integers(0, 255, (16, 16, 3), dtype=np.uint8)),
        ("masks", random.integers(0, 2, (16, 16), dtype=np.uint8)),
    ):
        (folder / side).mkdir(parents=True)
        first = folder / f"{side}.png"
        for n in range(count):
            if n % 10_000 == 0:  # a file has only so many names
                first.unlink(missing_ok=True)
                Image.fromarray(array).save(first)
            os.link(first, folder / side / f"car{n // 16:05d}_{n % 16:02d}.png")


def private_memory() -> int:
    """Return the KiB of memory that this process shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(x.split()[1]) for x in lines if x.startswith(("Private_Clean", "Private_Dirty")))


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds of `work` and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def measure(count: int) -> list[str]:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        make_files(folder, count)
        find, pairs = timed(lambda: find_pairs(folder / "imgs", folder / "masks"))
        divide, split = timed(lambda: split_pairs(pairs, validation=10, seed=0))
        scans = [timed(lambda: scan(pairs))[0] for _ in range(2)]
        how = (split.training, Labels((0, 1)), ImageFormat(3))
        dataset, watched = (kind(*how, scale=1.0) for kind in (SegmentationDataset, WatchedDataset))
        dataset[0, 0]  # imports
        some = range(0, len(dataset), max(1, len(dataset) // 500))
        sample = statistics.median(timed(lambda k=k: dataset[0, k])[0] for k in some)
        grown = ", ".join(f"{held:.0f}" for held in read_epochs(watched))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        f"{count:,}", f"{find:.2f} s", f"{divide:.2f} s", f"{scans[0]:.1f} s", f"{scans[1]:.2f} s",
        f"{sample * 1e3:.2f} ms", f"{grown} MB", f"{peak:.0f} MB",
    ]  # fmt: skip


class WatchedDataset(SegmentationDataset):
    """A data set whose last sample of an epoch has its reader's memory in place of its index."""

    epoch_length, held, read = 0, 0, 0

    def _sample(self, epoch: int, index: int) -> Sample:
        sample = super()._sample(epoch, index)
        self.read += 1
        if self.read % self.epoch_length == 0:  # looking takes some ten milliseconds
            self.held = private_memory()
        return sample._replace(pair=sample.pair * 0 + self.held)


def read_epochs(dataset: WatchedDataset) -> list[float]:
    """Return the megabytes of a reading process alone, at the end of each epoch.

    Each of all samples: pathlib looks a file's name up among those that the process already has,
    which are its parent's, and counts one more reference to it. That copies the page it is on, once.
    """
    sampler = TrainingSampler(len(dataset), BATCH, rank=0, size=1, seed=0)
    dataset.epoch_length = len(sampler)
    gc.collect()
    loader = SampleLoader(dataset, sampler, batch_size=BATCH, workers=1)
    grown = []
    for epoch in range(EPOCHS):
        sampler.start_at(epoch, 0)
        *_, last = loader
        grown.append(int(last.pair[-1]) / 1024)
    loader.close()
    return grown


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    options = parser.parse_args(argv)
    print_table(HEADS, map(measure, options.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
