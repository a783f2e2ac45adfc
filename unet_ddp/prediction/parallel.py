"""Reading, predicting and writing many images at the same time, on threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

import torch

from unet_ddp.data.formats.header import Pixels
from unet_ddp.errors import UserError
from unet_ddp.prediction.outputs.names import ImageFiles
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import SourceImage

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield the result of `work` on each item, in order, up to 2 per thread in advance."""
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
    """Share the cores among `threads` threads of ours: torch and OpenCV start none of their own."""
    import cv2

    before, cv2_before = torch.get_num_threads(), cv2.getNumThreads()
    cv2.setNumThreads(0)
    torch.set_num_threads(max(1, before // threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
        cv2.setNumThreads(cv2_before)


def attempt(predict: Callable[[Item], Prediction], image: Item) -> Prediction | UserError:
    """Return the prediction for an image, or the error if it can't be read."""
    try:
        return predict(image)
    except UserError as error:
        return error


class _Decoded(NamedTuple):
    """An image that was read, or the error; `pixels` is None if it is predicted in windows."""

    files: ImageFiles
    source: SourceImage | UserError
    pixels: Pixels | None = None


def predict_in_batches(
    predictor: Predictor, files: Iterable[ImageFiles], *, batch_size: int, threads: int
) -> Iterator[tuple[ImageFiles, Prediction | UserError]]:
    """Yield the prediction of each image, or its error, as they are ready.

    Threads read ahead (decoders release Python's lock), and images of one size form batches.
    """
    waiting: dict[tuple[int, ...], list[_Decoded]] = {}
    for image in in_threads(partial(_decode, predictor), files, threads):
        if isinstance(image.source, UserError):
            yield image.files, image.source
        elif image.pixels is None:
            yield image.files, attempt(predictor.predict, image.source)
        else:
            batch = waiting.setdefault(image.pixels.shape, [])
            batch.append(image)
            if len(batch) == batch_size or sum(map(len, waiting.values())) > 4 * batch_size:
                fullest = max(waiting, key=lambda shape: len(waiting[shape]))
                yield from _predict_batch(predictor, waiting.pop(fullest))
    for batch in waiting.values():
        yield from _predict_batch(predictor, batch)


def _decode(predictor: Predictor, files: ImageFiles) -> _Decoded:
    try:
        source = predictor.open(files.image)
        fits = predictor.fits(source.input_size)
        return _Decoded(files, source, source.read() if fits else None)
    except UserError as error:
        return _Decoded(files, error)


def _predict_batch(
    predictor: Predictor, batch: list[_Decoded]
) -> Iterator[tuple[ImageFiles, Prediction]]:
    pixels = [image.pixels for image in batch if image.pixels is not None]
    sizes = [image.source.size for image in batch if isinstance(image.source, SourceImage)]
    predictions = predictor.predict_batch(pixels, sizes)
    yield from zip((image.files for image in batch), predictions, strict=True)
