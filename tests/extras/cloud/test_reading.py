"""Samples whose objects are fetched ahead."""

from __future__ import annotations

import numpy as np
import pytest

from tests.object_store import MemoryBucket
from unet_ddp.data.pairs import find_stamp
from unet_ddp.data.samplers import ScoringSampler
from unet_ddp.extras.cloud import put
from unet_ddp.extras.cloud.ranges import RangeFile
from unet_ddp.extras.cloud.reading import AheadSampler
from unet_ddp.files import as_path


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_batch_comes_with_the_next_of_its_reading_process(workers: int) -> None:
    own = ScoringSampler(11, rank=0, size=1)
    batches = AheadSampler(own, batch_size=2, workers=workers)
    plain = [[(0, k) for k in range(n, min(n + 2, 11))] for n in range(0, 11, 2)]
    found = list(batches)
    assert [batch for batch, _ in found] == plain and len(batches) == len(plain)
    distance = max(1, workers)
    assert [ahead for _, ahead in found] == [*plain[distance:], *[[]] * distance]


@pytest.mark.parametrize("size", [1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 17])
def test_an_object_is_read_to_its_end_whatever_its_size(
    memory_store: MemoryBucket, size: int
) -> None:
    """Parts that end at a block's end, before or after it."""
    content = np.random.default_rng(size).bytes(size)
    path = as_path("s3://bucket/a")
    put(path, content)
    file = RangeFile(path, find_stamp(path))
    for first in {0, size // 2, size - 1, size, size + (1 << 18)}:
        for count in (1, size, -1):
            file.seek(first)
            end = size if count < 0 else first + count
            assert file.read(count) == content[first:end]
            assert file.tell() == max(first, min(end, size))
