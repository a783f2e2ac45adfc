"""The images of a job on one process: each from its file to its outputs.

On a GPU, threads read and write while the main one runs batches through the network. On a CPU the
network is most of the work and runs best on one core: each thread takes an image from its file to
its mask, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unet_ddp.data.formats.read import read_mask
from unet_ddp.data.labels import Labels
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.masks import write_mask, write_overlay, write_probabilities
from unet_ddp.prediction.outputs.names import ImageFiles, is_done
from unet_ddp.prediction.outputs.polygons import geojson_file
from unet_ddp.prediction.outputs.rle import rle_file
from unet_ddp.prediction.outputs.shards import ListFile, ShardFile
from unet_ddp.prediction.parallel import attempt, in_threads, one_core_each, predict_in_batches
from unet_ddp.prediction.prediction import Ids, Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.source import open_image

_BATCH_SIZE = 8


@dataclass(frozen=True)
class Job:
    """All that predicting needs on one process."""

    config: PredictConfig
    world: World
    files: list[ImageFiles]
    """Of all processes' images."""
    predictor: Predictor
    shards: list[ShardFile]
    """This process's lines for the files of all images together."""


def list_files(config: PredictConfig, labels: Labels) -> list[ListFile]:
    """Return the files of all images together."""
    files = []
    if config.rle:
        files.append(rle_file(Path(config.rle), config.rle_order, labels.num_classes))
    if config.polygons:
        files.append(geojson_file(Path(config.polygons), labels))
    return files


@dataclass(frozen=True)
class Outcome:
    """The result of one image."""

    line: str = ""
    error: str = ""
    single_class: str = ""
    """The name of the class that all pixels have, if they do."""
    is_skipped: bool = False
    """True if its files already existed."""


def process_images(job: Job) -> Iterator[Outcome]:
    """Yield the outcomes of this process's share of the images, which are then written."""
    config, world, predictor = job.config, job.world, job.predictor
    share = job.files[world.rank :: world.size]
    existing = [files for files in share if config.skip_existing and is_done(files)]
    done = {files.index for files in existing}
    remaining = [files for files in share if files.index not in done]
    threads = config.workers or min(len(share) or 1, world.cores)
    run = partial(in_threads, threads=threads)
    with one_core_each(threads) if len(share) > 1 else nullcontext():
        yield from run(partial(_list_existing, job), existing)
        if world.device.type == "cuda" or config.batch_size is not None:
            batch_size = config.batch_size or _BATCH_SIZE
            predictions = predict_in_batches(
                predictor, remaining, batch_size=batch_size, threads=threads
            )
            yield from run(lambda pair: _write(job, *pair), predictions)
        else:
            predictor.concurrency = threads
            yield from run(partial(_predict_and_write, job), remaining)


def _list_existing(job: Job, files: ImageFiles) -> Outcome:
    """Add a mask that was written before to the lists."""
    if job.shards:
        ids = job.predictor.labels.to_ids(read_mask(files.mask), files.mask)
        _add_to_lists(job, files, ids)
    return Outcome(is_skipped=True)


def _predict_and_write(job: Job, files: ImageFiles) -> Outcome:
    return _write(job, files, attempt(job.predictor, files.image))


def _write(job: Job, files: ImageFiles, prediction: Prediction | UserError) -> Outcome:
    """Write the outputs of one image; raise its error if it is the only one."""
    if isinstance(prediction, UserError):
        if len(job.files) == 1:
            raise prediction
        return Outcome(error=str(prediction))
    ids, labels = prediction.ids, prediction.labels
    if files.overlay is not None:
        image = open_image(files.image, job.predictor.format, scale=1.0)
        write_overlay(ids, labels, image, files.overlay)
        image.reader.close()
    if files.probabilities:
        write_probabilities(prediction, files.probabilities)
    _add_to_lists(job, files, ids)
    write_mask(ids, labels, files.mask)  # last: its presence says that the image is done
    shares = [pair for pair in zip(labels.class_names, prediction.shares, strict=True) if pair[1]]
    summary = ", ".join(f"{name} {share:.1%}" for name, share in shares)
    single_class = shares[0][0] if len(shares) == 1 else ""
    return Outcome(f"{files.image} -> {files.mask}: {summary}", single_class=single_class)


def _add_to_lists(job: Job, files: ImageFiles, ids: Ids) -> None:
    for shard in job.shards:
        shard.add(files.index, files.image.name, ids)
