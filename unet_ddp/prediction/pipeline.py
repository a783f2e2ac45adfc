"""The images of a job on one process: each from its file to its outputs.

On a GPU, threads read and write while the main one runs batches through the network. On a CPU the network is most of
the work and runs best on one core: each thread takes an image from its file to its mask, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from unet_ddp.data.readers.base import Pixels, Scene
from unet_ddp.data.readers.read import find_reader
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, join_some
from unet_ddp.files import is_address
from unet_ddp.files.completing import completing
from unet_ddp.files.output import say
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.existing import find_earlier, name_ways
from unet_ddp.prediction.inspection import is_damage
from unet_ddp.prediction.output_checks import check_length
from unet_ddp.prediction.outputs.base import ImageFiles, Output
from unet_ddp.prediction.outputs.mask import MaskFile
from unet_ddp.prediction.outputs.own import check_made, make_folders
from unet_ddp.prediction.outputs.records import Records
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import SourceImage
from unet_ddp.prediction.threads import in_threads, one_core_each
from unet_ddp.storage import fetch_ahead

_BATCH_SIZE = 8
_MOST_OPEN = 32  # images in a batch whose files stay open for the outputs
_SHOWN = 2  # files of an image, in its line

Item = TypeVar("Item")
Result = TypeVar("Result")
_Scaled = tuple[ImageFiles, Pixels, tuple[int, int]]  # at the network's scale, and its own size


@dataclass(frozen=True)
class Job:
    """All that predicting needs on one process."""

    config: PredictConfig
    world: World
    files: list[ImageFiles]  # the files of all processes' images
    predictor: Predictor
    outputs: Sequence[Output]
    records: Sequence[Records] = ()  # of those outputs that have a file of all images
    existing: frozenset[Path] = frozenset()  # files of earlier jobs, which no other may replace
    done: frozenset[int] = frozenset()  # indices of images with all files, which are skipped
    count: int | None = None  # images of the command, if `files` are not all

    @property
    def is_single(self) -> bool:
        """True for one image: what is wrong with it ends the command."""
        return (self.count or len(self.files)) == 1

    @property
    def mask(self) -> MaskFile:
        """The output that writes the masks: the first."""
        return cast(MaskFile, self.outputs[0])


@dataclass(frozen=True)
class Outcome:
    """The result of one image."""

    line: str = ""
    error: str = ""
    single_class: str = ""  # the name of the class that all pixels have, if they do
    is_skipped: bool = False  # its files already existed
    kept: int = 0  # files that already existed, and are the same
    example: str = ""  # one of its files
    is_shared: bool = False  # all processes have predicted it


def begin(job: Job) -> Job:
    """Return a job that knows the files of earlier ones; all processes call it."""
    config = job.config
    skips = config.skip_existing and (config.mask_format != "none" or not job.records)
    reads = bool(job.records)
    earlier = find_earlier(job.files, config, job.world, job.mask, skips=skips, reads=reads)
    return replace(job, **earlier._asdict())


def process_images(job: Job) -> Iterator[Outcome]:
    """Yield the outcomes of this process's share of the images, which are then written."""
    config, world, predictor = job.config, job.world, job.predictor
    share = job.files[world.rank :: world.size]
    existing = [files for files in share if files.index in job.done]
    # Those with existing files first: one that differs ends the job before others are written.
    remaining: Iterable[ImageFiles] = sorted(
        (files for files in share if files.index not in job.done),
        key=lambda files: job.existing.isdisjoint(files.written),
    )
    cores = world.cores if len(share) > 1 else 1
    threads = config.workers or max(1, min(len(share), cores))
    if any(is_address(files.image) for files in share):
        remaining = _fetched_ahead([*remaining], threads)
    with one_core_each(threads) if len(share) > 1 else nullcontext():
        yield from in_threads(partial(_list_existing, job), existing, threads)
        if world.device.type == "cuda" or config.batch_size is not None:
            batch_size = config.batch_size or _BATCH_SIZE
            predictions = predict_in_batches(
                predictor, remaining, batch_size=batch_size, threads=threads
            )
            yield from in_threads(lambda pair: write_outputs(job, *pair), predictions, threads)
        else:
            predictor.concurrency = threads
            yield from in_threads(partial(_predict_and_write, job), remaining, threads)


def _fetched_ahead(files: Sequence[ImageFiles], threads: int) -> Iterator[ImageFiles]:
    """Yield the images' files; objects among the next ones are fetched meanwhile.

    Up to `2 * threads + 1` that were yielded are not done yet; scenes may be too large to hold.
    """
    for place, each in enumerate(files):
        near = files[max(0, place - 2 * threads - 1) : place + threads + 1]
        images = (other.image for other in near)
        fetch_ahead(image for image in images if not issubclass(find_reader(image), Scene))
        yield each


def _list_existing(job: Job, files: ImageFiles) -> Outcome:
    """Record a mask that was written before; predict the image if its pixels can't be read."""
    if not job.records:
        return Outcome(is_skipped=True)
    try:
        mask = job.mask.read(files)
    except UserError as error:
        if not is_damage(error):
            raise UserError(
                f"{error}, or name another --output, if another network has made it"
            ) from None
        say(f"predicting again: {error}")
        return _predict_and_write(replace(job, existing=frozenset()), replace(files, marks={}))
    mask.flags.writeable = False  # as that of `Prediction`
    size = mask.shape[0], mask.shape[1]
    prediction = Prediction((), job.predictor.labels, size, size)
    prediction.mask = mask
    with files.source:
        for records in job.records:
            records.add(files, prediction)
    return Outcome(is_skipped=True)


def _predict_and_write(job: Job, files: ImageFiles) -> Outcome:
    prediction: Prediction | UserError
    try:
        check_length(files)
        prediction = job.predictor.prepare(job.predictor.open(files.source))
    except UserError as error:
        prediction = error
    return write_outputs(job, files, prediction)


def write_outputs(job: Job, files: ImageFiles, prediction: Prediction | UserError) -> Outcome:
    """Write the outputs of one image, and close it; raise its error if it is the only one."""
    existing = job.existing.intersection(files.written)
    ways = [name_ways("--output", skips=True)] if job.config.skip_existing else []
    with files.source:
        try:
            if isinstance(prediction, UserError):
                raise _NotPredictedError(str(prediction))
            with completing(existing, *ways) as kept:
                _compute(job, files, prediction)
                for records in job.records:
                    records.add(files, prediction)
                make_folders(files)
                for output in sorted(job.outputs, key=lambda output: output.turn):
                    output.write(files, prediction)
            for output in job.outputs:
                check_made(output, files)
        except _NotPredictedError as error:
            if job.is_single:
                raise
            return Outcome(error=str(error))
    return describe(job, files, prediction, kept)


def describe(job: Job, files: ImageFiles, prediction: Prediction, kept: Sequence[Path]) -> Outcome:
    """Return what was written of an image, and what is in its mask if the classes have names."""
    labels = prediction.labels
    found = [k for k, share in enumerate(prediction.shares) if share]
    single_class = ""
    if len(found) == 1 and prediction.shares[found[0]] == 1:
        single_class = labels.class_names[found[0]]
    about = summarise(prediction) if labels.names else ""
    line = str(files.image)
    written = [str(path) for path in files.written if path not in kept]
    if not files.written:
        written = [str(records.path) for records in job.records]
    if written:
        line += f" -> {join_some(written, _SHOWN)}"
    if kept:
        are = "are" if len(kept) > 1 else "is"
        about = f"kept {join_some([*map(str, kept)], _SHOWN)}, which {are} the same; {about}"
    line = ": ".join(filter(None, (line, about.removesuffix("; "))))
    example = next(map(str, files.written), "")
    return Outcome(line, single_class=single_class, kept=len(kept), example=example)


def summarise(prediction: Prediction) -> str:
    """Return the number of objects, if the mask numbers them, and the classes' shares of the pixels."""
    labels = prediction.labels
    shares = zip(labels.class_names, prediction.shares, strict=True)
    found = ", ".join(f"{name} {share:.1%}" for name, share in shares if share)
    return f"{labels.objects.count(prediction.mask)} objects; {found}" if labels.objects else found


def _compute(job: Job, files: ImageFiles, prediction: Prediction) -> None:
    """Make the mask, with one pass of the network for it and all outputs."""
    with ExitStack() as stack:
        watches = [stack.enter_context(each.watch(files, prediction)) for each in job.outputs]
        with _of_one_image():
            prediction.compute([see for see in watches if see is not None])
    with _of_one_image():  # after the watches: the edge of the data is no outline
        prediction.mark_nodata(files.source)


@contextmanager
def _of_one_image() -> Iterator[None]:
    """Make an error of reading in the block one of its image."""
    try:
        yield
    except UserError as error:
        raise _NotPredictedError(str(error)) from None


class _NotPredictedError(UserError):
    """One image can't be read, or does not fit into the memory; the others may."""


# -- batches -------------------------------------------------------------------------------


def predict_in_batches(
    predictor: Predictor, files: Iterable[ImageFiles], *, batch_size: int, threads: int
) -> Iterator[tuple[ImageFiles, Prediction | UserError]]:
    """Yield the prediction of each image, or its error, as they are ready.

    Threads read ahead (decoders release Python's lock), and images of one size form batches.
    """
    waiting: dict[tuple[int, ...], list[_Scaled]] = {}
    for each, image, pixels in in_threads(partial(_decode, predictor), files, threads):
        if isinstance(image, UserError):
            yield each, image
            continue
        if pixels is None:
            yield each, predictor.in_windows(image)
            continue
        if batch_size > _MOST_OPEN:
            each.source.close()
        batch = waiting.setdefault(pixels.shape, [])
        batch.append((each, pixels, image.size))
        most = min(batch_size, predictor.most_at_once(image.input_size))
        if len(batch) >= most or sum(map(len, waiting.values())) > 4 * batch_size:
            fullest = max(waiting, key=lambda shape: len(waiting[shape]))
            yield from _predict_batch(predictor, waiting.pop(fullest))
    for batch in waiting.values():
        yield from _predict_batch(predictor, batch)


def _decode(
    predictor: Predictor, files: ImageFiles
) -> tuple[ImageFiles, SourceImage | UserError, Pixels | None]:
    """Return an image opened, or the error, and its pixels if it is predicted whole."""
    try:
        check_length(files)
        image = predictor.open(files.source)
        if not predictor.fits(image.input_size):
            return files, image, None
        return files, image, image.read(0, image.input_size[0])
    except UserError as error:
        return files, error, None


def _predict_batch(
    predictor: Predictor, batch: list[_Scaled]
) -> Iterator[tuple[ImageFiles, Prediction | UserError]]:
    files, pixels, sizes = zip(*batch, strict=True)
    try:
        found: list[Prediction | UserError] = [*predictor.predict_batch(pixels, sizes)]
    except UserError as error:
        if len(batch) > 1:  # one of them may be at fault
            for each in batch:
                yield from _predict_batch(predictor, [each])
            return
        found = [UserError(f"{each.image}: {error}") for each in files]
    yield from zip(files, found, strict=True)
