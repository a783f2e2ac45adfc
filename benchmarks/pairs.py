"""The time to find, split and scan many pairs, and the cost of a sample of them.

    python -m benchmarks.pairs

Tiny files, so that their number is what counts: names are matched and split, files are scanned for
the first time and from the cache, and one process reads the whole set three times while its memory
is watched.

    python -m benchmarks.pairs --packed 10000000 [--balance 50]

draws the index of a pack of so many pairs, without files, and measures the memory of processes that
prepare the data, and that take part in training: at most, and over that of `import torch`.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from benchmarks.timing import new_parser, print_table
from unet_ddp.checks.check import prepare_data
from unet_ddp.checks.scan import scan
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import Sample, SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import SampleLoader
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.pairs import FileKind
from unet_ddp.data.readers.base import Header, ImageFormat
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.data.splits import split_pairs
from unet_ddp.extras.packs.pack_columns import write_columns
from unet_ddp.extras.packs.pack_files import INDEX, shard_name
from unet_ddp.extras.packs.pack_index import PackIndex, Shard

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


# -- packs ---------------------------------------------------------------------------------


def draw_index(folder: Path, count: int) -> None:
    """Write the index of a pack of `count` pairs in groups of 16, and shards without content."""
    headers = (Header(512, 512, channels, "uint8") for channels in (3, 1))
    kind = FileKind((".jpg", ".png"), *headers)
    each = 5000  # pairs of a shard
    shards = [Shard(each * 100 * 512, "", first) for first in range(0, count, each)]
    for number, shard in enumerate(shards):
        with (folder / shard_name(number)).open("wb") as file:
            file.truncate(shard.size)
    random = np.random.default_rng(0)
    block = np.arange(count, dtype=np.uint32) % each * 100
    sizes = random.integers(20_000, 40_000, count, dtype=np.uint32)
    zeros = random.integers(0, 512 * 512, count, dtype=np.uint32)
    names = [b"car%07d_%02d\0" % (n // 16, n % 16) for n in range(count)]
    columns = {
        "kind": np.zeros(count, np.uint32),
        "thumbnail": random.integers(0, 255, (count, 64), dtype=np.uint8),
        "moments": np.zeros((count, 0)),
        "end": np.arange(2, 2 * count + 1, 2),
        "value": np.tile(np.array([0, 255], np.int32), count),
        "pixels": np.stack([zeros, 512 * 512 - zeros], axis=1).reshape(-1),
        "place": np.stack([block + 1, sizes, block + 81, sizes // 10], axis=1),
        "name": np.frombuffer(b"".join(names), np.uint8),
        "name_end": np.arange(1, count + 1) * len(names[0]),
    }
    index = PackIndex([kind], shards, "", "", validation=0, nodata=None, channels=None)
    write_columns(folder / INDEX, asdict(index), columns)


def prepare(folder: Path, balance: float) -> tuple[float, str]:
    """Prepare the data as rank 0 does, keep it as the other ranks get it; return its seconds of a core."""
    began = time.process_time()
    data = prepare_data(DataConfig(images=str(folder), balance=balance), parts=DATA_PARTS, seed=0)
    data.split.fingerprint  # noqa: B018  # which is computed when it is asked for
    seconds = time.process_time() - began
    (folder / "data.pickle").write_bytes(pickle.dumps(data))
    return seconds, data.split.how


def take_part(folder: Path, _: float) -> tuple[float, str]:
    """Find the files of the first 20,000 samples of a rank of two; return its seconds of a core."""
    began = time.process_time()
    data = pickle.loads((folder / "data.pickle").read_bytes())
    dataset = SegmentationDataset(data.split.training, data.labels, data.format, scale=1.0)
    sampler = TrainingSampler(len(dataset), BATCH, rank=0, size=2, seed=0)
    keys = iter(sampler)
    for epoch, index in islice(keys, 20_000):
        dataset.pairs.to_read(data.draw(epoch, index)[0] if data.draw else index)
    return time.process_time() - began, f"{len(sampler)} of {len(dataset)} samples"


def run_packed(count: int, balance: float) -> None:
    """Print a line for each kind of process, with its memory at most."""
    alone = "import torch; print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_index(folder, count)
        size = (folder / INDEX).stat().st_size / 1e6
        base = int(subprocess.check_output([sys.executable, "-c", alone]))
        print(f"{count:,} pairs, index of {size:.0f} MB; import torch alone: {base / 1024:.0f} MB")
        for role in ("prepare", "take_part"):
            words = [sys.executable, "-m", "benchmarks.pairs", "--role", role, name]
            words += ["--balance", str(balance)]
            peak, seconds, about = subprocess.check_output(words, text=True).strip().split("\t")
            print(
                f"{role}: {(int(peak) - base) / 1024:.0f} MB more, {seconds} s of a core; {about}"
            )


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
    parser.add_argument("--packed", type=int, help="pairs of a drawn index, instead")
    parser.add_argument("--balance", type=float, default=0.0, help="as of train.py; with --packed")
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.role:
        role, folder = options.role
        seconds, about = globals()[role](Path(folder), options.balance)
        held = Path("/proc/self/status").read_text(encoding="ascii").partition("VmHWM:")[2]
        print(held.split()[0], f"{seconds:.1f}", about, sep="\t")
        return 0
    if options.packed:
        run_packed(options.packed, options.balance)
        return 0
    print_table(HEADS, map(measure, options.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
