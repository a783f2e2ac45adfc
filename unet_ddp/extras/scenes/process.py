"""The large scenes of a job: all processes predict parts of each, and one merges them into its mask."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import prod
from typing import NamedTuple, cast

import numpy as np
import torch
from tqdm import tqdm

from unet_ddp import __version__
from unet_ddp.checkpoints.weights import find_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, IN_MEMORY, Ids, Mask
from unet_ddp.data.pairs import find_stamp
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.readers.read import find_reader, own_readers
from unet_ddp.distributed.device import free_memory
from unet_ddp.errors import UserError, count_of, hides_bars, print_lines
from unet_ddp.extras.geo.reader import MapFile
from unet_ddp.extras.scenes.blocks import SceneImage, count_blocks, open_scene, predict_part
from unet_ddp.extras.scenes.parts import MergedMask, PartError, PartKey, Parts, name_job
from unet_ddp.files import is_address
from unet_ddp.files.completing import completing
from unet_ddp.plugins import read_sources
from unet_ddp.prediction.outputs.base import ImageFiles
from unet_ddp.prediction.outputs.mask import MaskFile, write_mask
from unet_ddp.prediction.paths import check_length, find_existing
from unet_ddp.prediction.pipeline import Job, Outcome, describe, one_core_each, process_images
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.tiling import explain_memory
from unet_ddp.settings import values_of
from unet_ddp.storage import local_file

LARGE = 1 << 27
"""Pixels at the network's scale from which a scene is predicted in parts, whatever the memory and the processes."""
_SAME = {
    "inputs",
    "output",
    "model",
    "overwrite",
    "skip_existing",
    "workers",
    "nproc",
    "device",
    "log",
}
"""Settings on which a mask does not depend, or which the digest of a job has in another form."""


def process_scenes(job: Job) -> Iterator[Outcome]:
    """Yield the outcomes of a job as `process_images` does; large scenes come first, on rank 0."""
    scenes = job.world.on_main(partial(find_scenes, job))
    for files in (each for each in job.files if each.index in scenes):
        yield from _process_scene(job, files)
    rest = [each for each in job.files if each.index not in scenes]
    if rest:
        yield from process_images(replace(job, files=rest, count=len(job.files)))


def find_scenes(job: Job) -> set[int]:
    """Return the indices of the images that are predicted in parts: large scenes of which only a mask is written."""
    is_by_pixel = type(job.predictor.labels).decode is Labels.decode
    if not is_by_pixel or job.records or [type(each) for each in job.outputs] != [MaskFile]:
        return set()
    here = [each for each in job.files if not is_address(each.image) and not is_address(each.mask)]
    maps = [each for each in here if issubclass(find_reader(each.image), MapFile)]
    return {files.index for files in maps if _is_large(job.predictor, files)}


def _is_large(predictor: Predictor, files: ImageFiles) -> bool:
    """Return whether a TIFF is a large scene; one that can't be read is none."""
    try:
        with as_user_error(files.image), closing(MapFile(files.image)) as file:
            if file.layout.pixels < LARGE:
                return False
        with files.source:
            scene = open_scene(predictor, files.source)
    except UserError:
        return False
    if scene is None:
        return False
    return prod(scene.input_size) >= LARGE or prod(scene.size) > IN_MEMORY


class Plan(NamedTuple):
    """The parts of a scene, and which of them are missing."""

    parts: Parts
    missing: list[PartKey]


def _process_scene(job: Job, files: ImageFiles) -> Iterator[Outcome]:
    """Predict a scene by all processes, and yield its outcome on rank 0.

    Raises:
        UserError: it can't be read, and is the only image; or a file can't be written.
    """
    world = job.world
    plan = world.on_main(partial(_plan, job, files))
    errors = []
    if plan is not None:
        errors = [*filter(None, world.gather(_predict_missing(job, files, plan)))]
    if world.is_main:
        if plan is None:
            yield Outcome(is_skipped=True)
        elif errors:
            yield Outcome(error=errors[0])
        else:
            yield _merge(job, files, plan.parts)
    world.gather(None)  # the others wait for the mask


def _plan(job: Job, files: ImageFiles) -> Plan | None:
    """Return what is to be done for a scene; None if its mask is there and is to be skipped."""
    if job.config.skip_existing and find_existing(files.written):
        return None
    check_length(files)
    with files.source:
        scene = open_scene(job.predictor, files.source)
    assert scene is not None  # `find_scenes` has opened it
    blocks = count_blocks(job.predictor, scene)
    parts = Parts(files.mask, _name_job(job, files, blocks), scene.size, blocks)
    for folder in parts.others:
        print_lines(
            f"warning: {folder}: parts of another job for this mask (another network, scene or flag); "
            "delete the folder, unless that job still runs"
        )
    missing = [key for key in parts.keys if not parts.path(*key).exists()]
    total = len(parts.keys)
    if len(missing) < total:
        kept = f"{total - len(missing)} of {count_of(total, 'part')}"
        print_lines(f"{files.image}: keeping {kept}, which a job that stopped has predicted")
    return Plan(parts, missing)


def _name_job(job: Job, files: ImageFiles, blocks: int) -> str:
    """Return the name of all jobs that predict the same mask."""
    values = {name: value for name, value in values_of(job.config).items() if name not in _SAME}
    predictor = job.predictor
    how = [predictor.threshold, predictor.tiling, predictor.format, blocks, predictor.device.type]
    how += [model.is_half for model in predictor.models]
    own = [read_sources("readers", name) for name in own_readers()]
    if job.config.network is not None:
        own.append(read_sources("networks", job.config.network))
    with ExitStack() as stack:
        names = job.config.model or [None]
        models = [stack.enter_context(local_file(find_model(name))) for name in names]
        scene = os.path.realpath(files.image), find_stamp(files.image)
        return name_job(__version__, values, how, scene, own, models=models)


def _predict_missing(job: Job, files: ImageFiles, plan: Plan) -> str:
    """Predict this process's share of the missing parts; return why the scene can't be read, or nothing.

    Raises:
        PartError: a part can't be written.
        UserError: the scene can't be read, and is the only image: the other processes need not end their shares.
    """
    world, count = job.world, len(plan.missing)
    first, last = (count * rank // world.size for rank in (world.rank, world.rank + 1))
    share = plan.missing[first:last]  # neighbours, which have windows in common
    threads = _count_threads(job)
    is_hidden = not world.is_main or hides_bars()
    bar = tqdm(total=len(share), unit="part", leave=False, disable=is_hidden)
    # One core for each window: the number of threads decides the last bits of a convolution.
    try:
        with (
            files.source,
            one_core_each(max(threads, torch.get_num_threads())),
            explain_memory(job.predictor.tiling.window, str(files.image)),
            bar,
        ):
            for key, ids in _predict_parts(job, files, plan.parts, share, threads):
                plan.parts.write(key, ids)
                bar.update()
    except UserError as error:
        if isinstance(error, PartError) or job.is_single:
            raise
        return str(error)
    return ""


def _predict_parts(
    job: Job, files: ImageFiles, parts: Parts, share: Sequence[PartKey], threads: int
) -> Iterator[tuple[PartKey, Ids]]:
    """Yield the class ids of parts, with pixels without data marked."""
    scene = open_scene(job.predictor, files.source)
    assert scene is not None
    marks = files.mask.suffix.lower() != ".png" and files.source.place is not None  # as `MaskFile`
    for _, run in groupby(enumerate(share), lambda each: (each[1].block, each[1].row - each[0])):
        for key, ids in _predict_run(job, scene, parts, [key for _, key in run], threads):
            with files.source.reading() as opened:
                if marks and isinstance(opened, MapFile):
                    at = parts.rows[key.row].start, parts.columns[key.block].start
                    opened.mark_nodata(ids, job.predictor.labels.blank, at)
            yield key, ids


def _count_threads(job: Job) -> int:
    """Return how many windows this process predicts at once, by its cores and half of its share of the free memory."""
    predictor, world = job.predictor, job.world
    if predictor.device.type == "cuda":
        return 1
    window = predictor.tiling.window**2 * max(each.bytes_per_pixel for each in predictor.networks)
    room = free_memory(predictor.device) // (2 * world.local_size * window)
    return max(1, min(job.config.workers or world.cores, int(room)))


def _predict_run(
    job: Job, scene: SceneImage, parts: Parts, run: Sequence[PartKey], threads: int
) -> Iterator[tuple[PartKey, Ids]]:
    """Yield the class ids of parts that follow each other down a block."""
    columns = parts.columns[run[0].block]
    rows = range(parts.rows[run[0].row].start, parts.rows[run[-1].row].stop)
    bands = predict_part(job.predictor, scene, rows, columns, threads=threads)
    found = np.zeros((0, len(columns)), np.uint8)
    for key in run:
        size = len(parts.rows[key.row])
        pieces = [found]
        while sum(map(len, pieces)) < size:
            pieces.append(next(bands))
        found = np.concatenate(pieces)
        yield key, found[:size].copy()
        found = found[size:]


def _merge(job: Job, files: ImageFiles, parts: Parts) -> Outcome:
    """Write the mask of all parts, remove them, and return the outcome."""
    labels, counts = job.predictor.labels, parts.count()
    prediction = Prediction((), labels, parts.size, parts.size)
    prediction.mask = cast(Mask, MergedMask(parts))
    total = max(1, int(counts.sum() - counts[IGNORE_ID]))
    prediction.shares = [int(count) / total for count in counts[: labels.num_classes]]
    existing = set() if job.config.overwrite else find_existing(files.written)
    with files.source, completing(existing) as kept:
        write_mask(prediction.mask, labels, files.mask, files.source.place)
    parts.remove()
    return describe(job, files, prediction, kept)
