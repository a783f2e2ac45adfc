"""Samples that are kept in memory are those of the files, decoded once by all reading processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import make_set
from tests.ranks import Ranks
from unet_ddp.data.augmentation import Augmentation
from unet_ddp.data.dataset import SegmentationDataset
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import SampleLoader
from unet_ddp.data.matching import find_pairs
from unet_ddp.data.memory import SampleMemory, share_memory
from unet_ddp.data.pairs import Pair
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.world import World

COLOUR, COUNT, SIZE = ImageFormat(3), 6, (20, 26)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_set(tmp_path, COUNT, size=SIZE)


PAIR = Pair("a", Path("a.png"), Path("a_mask.png"))


def make_memory(
    count: int, image_format: ImageFormat, *, pixels: int, world: World | None = None
) -> SampleMemory:
    needed = SampleMemory.needed(count, image_format, pixels=pixels, num_ids=2)
    (memory,) = share_memory([needed], world or World())
    return SampleMemory(memory, image_format, pixels=pixels, num_ids=2)


def make_dataset(folder: Path, memory: SampleMemory | None) -> SegmentationDataset:
    augmentation = Augmentation(COLOUR, "photo", None, seed=3)
    pairs = find_pairs(folder / "imgs", folder / "masks")
    return SegmentationDataset(
        pairs, Labels((0, 255)), COLOUR, scale=1.0, augmentation=augmentation, store=memory
    )


def read_epochs(folder: Path, memory: SampleMemory | None, workers: int, epochs: int) -> list[Any]:
    sampler = TrainingSampler(COUNT, 2, rank=0, size=1, seed=0)
    loader = SampleLoader(make_dataset(folder, memory), sampler, batch_size=2, workers=workers)
    batches = []
    for epoch in range(epochs):
        sampler.start_at(epoch, 0)
        batches += list(loader)
        if memory is not None and epoch == 0:  # what is kept needs its files no more
            for path in (folder / "imgs").iterdir():
                path.write_bytes(b"")
    loader.close()
    return batches


@pytest.mark.parametrize("workers", [0, 2])
def test_later_epochs_have_the_samples_of_the_files_without_reading_them(
    folder: Path, workers: int
) -> None:
    wanted = read_epochs(folder, None, 0, 3)
    memory = make_memory(COUNT, COLOUR, pixels=SIZE[0] * SIZE[1])
    found = read_epochs(folder, memory, workers, 3)
    assert len(found) == len(wanted) == 9
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_samples_of_any_size_and_type_come_back(dtype: str) -> None:
    random = np.random.default_rng(0)
    memory = make_memory(3, ImageFormat(2, dtype), pixels=35)
    samples = [
        ((100 * random.random((*size, 2))).astype(dtype), random.integers(0, 9, size, np.uint8))
        for size in ((5, 7), (7, 5), (3, 1))
    ]
    for _ in range(2):
        for index in (2, 0, 1):
            image, ids = memory.load(index, PAIR, lambda pair, index=index: samples[index])
            assert image.dtype == dtype and np.array_equal(image, samples[index][0])
            assert np.array_equal(ids, samples[index][1])
    image[:], ids[:] = 0, 0  # a caller's copy
    assert np.array_equal(memory.load(1, PAIR, lambda pair: samples[0])[0], samples[1][0])


def test_there_is_none_where_files_may_not_be_so_large() -> None:
    """Also if the first of two has room: a limit as of `ulimit -f`, which memory has like files."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = len([*Path("/proc/self/fd").iterdir()])
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        found = [share_memory(sizes, World()) for sizes in ([1 << 20], [1 << 10, 1 << 20])]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found == [[], []] and len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_sample_that_is_still_being_written_is_decoded(rng: np.random.Generator) -> None:
    """Any word may be missing when the header can be read: processors that reorder writes exist."""
    needed = SampleMemory.needed(2, ImageFormat(3), pixels=35, num_ids=2)
    (shared,) = share_memory([needed], World())
    memory = SampleMemory(shared, ImageFormat(3), pixels=35, num_ids=2)
    sample = rng.integers(1, 255, (5, 7, 3), np.uint8), rng.integers(1, 9, (5, 7), np.uint8)
    memory.load(1, PAIR, lambda pair: sample)
    whole = bytes(shared)
    slot = len(whole) // 2
    for first in range(slot + 32, slot + 32 + 140, 8):
        shared[first : first + 8] = bytes(8)
        image, ids = memory.load(1, PAIR, lambda pair: sample)
        assert np.array_equal(image, sample[0]) and np.array_equal(ids, sample[1])
        assert bytes(shared) == whole  # written again


def test_a_file_that_grew_since_the_scan_is_read_each_time() -> None:
    memory = make_memory(2, ImageFormat(1), pixels=4)
    for value in (1, 2):
        large = np.full((3, 3, 1), value, np.uint8), np.zeros((3, 3), np.uint8)
        assert memory.load(0, PAIR, lambda pair, large=large: large)[0][0, 0, 0] == value
    small = np.ones((2, 2, 1), np.uint8), np.ones((2, 2), np.uint8)
    assert memory.load(1, PAIR, lambda pair: small)[1].sum() == 4


def read_after_another_rank() -> list[int]:
    """Decode as many samples as there are ranks, then take those of the others."""
    world = join("cpu", timeout=30)
    memory, decoded = make_memory(world.size, ImageFormat(1), pixels=4, world=world), []

    def decode(index: int) -> Any:
        decoded.append(index)
        return np.full((2, 2, 1), index, np.uint8), np.full((2, 2), 7, np.uint8)

    memory.load(world.rank, PAIR, lambda pair: decode(world.rank))
    world.gather(None)  # an epoch has ended
    found = [memory.load(k, PAIR, lambda pair, k=k: decode(k))[0].max() for k in range(world.size)]
    assert found == [*range(world.size)]
    leave(world)
    return decoded


def test_a_sample_is_decoded_by_one_rank_of_a_machine(ranks: Ranks) -> None:
    assert ranks.run(3, read_after_another_rank) == [[0], [1], [2]]
