"""Samples whose objects are fetched ahead."""

from __future__ import annotations

import pytest

from unet_ddp.data.samplers import ScoringSampler
from unet_ddp.extras.cloud.reading import AheadSampler


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_batch_comes_with_the_next_of_its_reading_process(workers: int) -> None:
    own = ScoringSampler(11, rank=0, size=1)
    batches = AheadSampler(own, batch_size=2, workers=workers)
    plain = [[(0, k) for k in range(n, min(n + 2, 11))] for n in range(0, 11, 2)]
    found = list(batches)
    assert [batch for batch, _ in found] == plain and len(batches) == len(plain)
    distance = max(1, workers)
    assert [ahead for _, ahead in found] == [*plain[distance:], *[[]] * distance]
