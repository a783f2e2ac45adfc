"""Threads that share the work on a job's images, and the cores among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield the result of `work` on each item, in order, up to 2 per thread in advance; close it to end them."""
    pool = ThreadPoolExecutor(threads)
    started: deque[Future[Result]] = deque()
    try:
        for item in items:
            started.append(pool.submit(work, item))
            if len(started) > 2 * threads:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def one_core_each(threads: int) -> Iterator[None]:
    """Share the cores among `threads` threads of ours: torch and OpenCV start no further ones."""
    import cv2

    before, cv2_before = torch.get_num_threads(), cv2.getNumThreads()
    cv2.setNumThreads(0)
    torch.set_num_threads(max(1, before // threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
        cv2.setNumThreads(cv2_before)
