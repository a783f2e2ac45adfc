"""Images that wait for the network, and the threads that predict them."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from unet_ddp.data.readers.base import TooLargeError
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError
from unet_ddp.extras.serve.settings import ServeConfig
from unet_ddp.prediction.load import mark_masks
from unet_ddp.prediction.outputs.base import ImageFiles, open_outputs
from unet_ddp.prediction.paths import name_outputs
from unet_ddp.prediction.pipeline import Job, predict_in_batches, summarise, write_outputs
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor

_MEDIA_TYPES = {".png": "image/png", ".tif": "image/tiff"}


class Answer(NamedTuple):
    """The prediction that a client gets, and a line about it for the log."""

    content: bytes
    media_type: str
    line: str
    seconds: float  # since its turn came


class Waiting(NamedTuple):
    """An image's file, and its answer to come: a UserError if it can't be predicted, RunError if not written."""

    path: Path
    is_json: bool
    answer: Future[Answer]


class PredictionQueue:
    """Predicts as predict.py does, with a pool of threads; each takes up to a batch of what waits.

    An image whose answer is cancelled before costs nothing.
    """

    def __init__(
        self, predictor: Predictor, folder: Path, pool: ThreadPoolExecutor, config: ServeConfig
    ) -> None:
        self.predictor, self.folder, self.config, self._pool = predictor, folder, config, pool
        self.batch_size = config.batch_size or (8 if predictor.device.type == "cuda" else 1)
        self._waiting: deque[Waiting] = deque()
        asked = replace(config, overwrite=True, polygons=str(folder / "polygons.json"))
        if predictor.labels.may_overlap:  # it has a PNG for each class, but one TIFF
            asked = replace(asked, mask_format="tif")
        self._outputs = open_outputs(asked, predictor.labels, predictor.format)
        self._mark = mark_masks(predictor)
        self._job = Job(asked, World(), [], predictor, self._outputs)

    def predict(self, path: Path, *, is_json: bool) -> Future[Answer]:
        """Return the answer to come for an image's file; files are written next to it."""
        waiting = Waiting(path, is_json, Future())
        self._waiting.append(waiting)
        self._pool.submit(self.predict_some)
        return waiting.answer

    @property
    def length(self) -> int:
        """Number of images whose turn has not come."""
        return len(self._waiting)

    def predict_some(self) -> None:
        """Answer what waits, if another thread has not."""
        batch: dict[Path, Waiting] = {}
        with suppress(IndexError):
            while len(batch) < self.batch_size:
                waiting = self._waiting.popleft()
                if waiting.answer.set_running_or_notify_cancel():
                    batch[waiting.path] = waiting
        self._predict_batch(batch)

    def _predict_batch(self, batch: Mapping[Path, Waiting]) -> None:
        """Answer each image; after a fault each that has no answer is tried alone, as the fault may be another's."""
        began = time.monotonic()
        try:
            found = predict_in_batches(
                self.predictor, self._name(batch.values()),
                batch_size=self.batch_size, threads=self.batch_size,
            )  # fmt: skip
            for files, prediction in found:
                self._answer(batch[files.image], files, prediction, began)
        except Exception as error:
            for path, waiting in batch.items():
                if waiting.answer.done():
                    continue
                if len(batch) == 1:
                    waiting.answer.set_exception(error)
                else:
                    self._predict_batch({path: waiting})

    def _name(self, batch: Iterable[Waiting]) -> Iterator[ImageFiles]:
        """Yield the files of images; nothing is decoded yet."""
        labels, resolution = self.predictor.labels, self.predictor.format.ground_resolution
        most = self.config.max_megapixels
        for path, is_json, answer in batch:
            outputs = self._outputs if is_json else self._outputs[:1]
            try:
                (files,) = name_outputs(
                    [path], self._job.config, labels, outputs,
                    ground_resolution=resolution, mark=self._mark,
                )  # fmt: skip
                height, width = files.source.header.size
                if height * width > 1e6 * most:
                    raise TooLargeError(
                        f"{path}: {width}x{height} pixels, more than {most:g} million; the server's "
                        "--max-megapixels sets it"
                    )
                yield files
            except UserError as error:
                answer.set_exception(error)

    def _answer(
        self, waiting: Waiting, files: ImageFiles, prediction: Prediction | UserError, began: float
    ) -> None:
        try:
            outcome = write_outputs(self._job, files, prediction)
        except UserError as error:  # a full disk: what is wrong with the image is in the outcome
            raise RunError(str(error)) from None
        if outcome.error or isinstance(prediction, UserError):
            failure = prediction if isinstance(prediction, UserError) else UserError(outcome.error)
            waiting.answer.set_exception(failure)
            return
        content, kind = files.mask.read_bytes(), _MEDIA_TYPES[files.mask.suffix]
        if waiting.is_json:
            content, kind = self._describe(files, prediction).encode(), "application/json"
        seconds = time.monotonic() - began
        waiting.answer.set_result(Answer(content, kind, summarise(prediction), seconds))

    def _describe(self, files: ImageFiles, prediction: Prediction) -> str:
        """Return a prediction as JSON."""
        polygons, text = self._outputs[1], StringIO()
        polygons.merge([polygons.record(files, prediction)], text)
        pairs = zip(prediction.labels.class_names, prediction.shares, strict=True)
        classes = [{"name": name, "share": share} for name, share in pairs]
        height, width = prediction.size
        about = json.dumps({"width": width, "height": height, "classes": classes})
        return f'{about[:-1]}, "polygons": {text.getvalue()}}}\n'
