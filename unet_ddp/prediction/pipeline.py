"""Many images: reading, predicting and writing at the same time.

For a GPU, threads read and write, and the main one has the network see batches. On a CPU the
network is the most of the work and runs best on one core: each thread takes an image from its file
to its mask, and none waits for another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from unet_ddp.data.formats.header import Pixels
from unet_ddp.errors import UserError
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor, SourceImage

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Task:
    """An image to predict."""

    number: int
    path: Path


@dataclass(frozen=True)
class _Read:
    """An image that is ready for the network, or why it can't be."""

    task: Task
    opened: SourceImage | None = None
    pixels: Pixels | None = None
    """None where it is too large to be predicted whole."""
    error: UserError | None = None


@contextmanager
def one_core_each(threads: int) -> Iterator[None]:
    """Within it, neither torch nor OpenCV has threads of its own beside `threads` of ours."""
    import cv2

    before, cv2_before = torch.get_num_threads(), cv2.getNumThreads()
    cv2.setNumThreads(0)
    torch.set_num_threads(max(1, before // threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
        cv2.setNumThreads(cv2_before)


def predict_one(predictor: Predictor, path: Path, *, keep: bool) -> Prediction | UserError:
    """The prediction of an image, or why it can't be read."""
    try:
        found = predictor(path, keep=keep)
        _ = found.ids  # a damaged file shows here at the latest
        return found
    except UserError as error:
        return error


def predict_all(
    predictor: Predictor,
    tasks: Sequence[Task],
    *,
    batch_size: int,
    threads: int,
    keep: bool = False,
) -> Iterator[tuple[Task, Prediction | UserError]]:
    """The prediction of each image, or why it can't be read, as they are ready.

    Threads read ahead, as decoders leave Python's lock alone; images of one size are gathered to
    batches.

    Args:
        keep: see `Predictor.__call__`.
    """
    waiting: dict[tuple[int, ...], list[_Read]] = {}
    reads = in_threads(lambda task: _read(predictor, task), tasks, threads, ahead=2 * threads + 2)
    for read in reads:
        if read.error is not None:
            yield read.task, read.error
        elif read.pixels is None:
            assert read.opened is not None
            yield read.task, _large(predictor, read.opened, keep=keep)
        else:
            group = waiting.setdefault(read.pixels.shape, [])
            group.append(read)
            if len(group) == batch_size or sum(map(len, waiting.values())) > 4 * batch_size:
                fullest = max(waiting, key=lambda shape: len(waiting[shape]))
                yield from _batch(predictor, waiting.pop(fullest))
    for group in waiting.values():
        yield from _batch(predictor, group)


def _read(predictor: Predictor, task: Task) -> _Read:
    try:
        opened = predictor.open(task.path)
        if not predictor.fits(opened.small):
            return _Read(task, opened)
        pixels = opened.rows.read(0, opened.small[0])
        opened.rows.close()
        return _Read(task, opened, pixels)
    except UserError as error:
        return _Read(task, error=error)


def _large(predictor: Predictor, opened: SourceImage, *, keep: bool) -> Prediction | UserError:
    try:
        return predictor.predict(opened, keep=keep)
    except UserError as error:  # damaged somewhere in its midst
        return error


def _batch(predictor: Predictor, group: list[_Read]) -> Iterator[tuple[Task, Prediction]]:
    pixels = [read.pixels for read in group if read.pixels is not None]
    sizes = [read.opened.size for read in group if read.opened is not None]
    predictions = predictor.predict_batch(pixels, sizes)
    yield from zip((read.task for read in group), predictions, strict=True)


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, *, ahead: int
) -> Iterator[Result]:
    """`work` on each item, in order, on threads; no more than `ahead` are begun and not taken."""
    source = iter(items)
    pool = ThreadPoolExecutor(threads)
    begun: deque[Future[Result]] = deque()
    try:
        for item in source:
            begun.append(pool.submit(work, item))
            if len(begun) >= ahead:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
