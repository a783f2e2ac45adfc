"""The large scenes of a job: all processes predict parts of each, and one merges them into its mask."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from math import prod
from typing import cast

import numpy as np
import torch
from tqdm import tqdm

from unet_ddp import __version__
from unet_ddp.checkpoints.weights import find_model
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import IGNORE_ID, IN_MEMORY, Ids, Mask
from unet_ddp.data.pairs import find_stamp
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.data.readers.read import find_reader
from unet_ddp.distributed.device import free_memory
from unet_ddp.errors import UserError, count_of, hides_bars, print_lines
from unet_ddp.extras.geo.reader import MapFile
from unet_ddp.extras.scenes.blocks import count_blocks, open_scene, predict_part
from unet_ddp.extras.scenes.parts import MergedMask, PartError, PartKey, Parts
from unet_ddp.files import is_address
from unet_ddp.files.completing import completing
from unet_ddp.plugins import read_sources
from unet_ddp.prediction.output_checks import check_length
from unet_ddp.prediction.outputs.base import ImageFiles
from unet_ddp.prediction.outputs.mask import MaskFile, write_mask
from unet_ddp.prediction.pipeline import Job, Outcome, describe, process_images
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.threads import one_core_each
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
        outcome = _process_scene(job, files)
        if job.world.is_main:
            yield replace(outcome, is_shared=True)
        job.world.gather(None)  # the others wait for the mask
    rest = [each for each in job.files if each.index not in scenes]
    if rest:
        yield from process_images(replace(job, files=rest, count=len(job.files)))


def find_scenes(job: Job) -> set[int]:
    """Return the indices of the images that are predicted in parts: large scenes of which only a mask is written."""
    is_by_pixel = type(job.predictor.labels).decode is Labels.decode
    if not is_by_pixel or job.records or [type(each) for each in job.outputs] != [MaskFile]:
        return set()
    here = (each for each in job.files if not is_address(each.image) and not is_address(each.mask))
    maps = (each for each in here if issubclass(find_reader(each.image), MapFile))
    return {files.index for files in maps if _is_large(job.predictor, files)}


def _is_large(predictor: Predictor, files: ImageFiles) -> bool:
    """Return whether a TIFF is a large scene; one that can't be read is none."""
    with suppress(UserError), as_user_error(files.image), closing(MapFile(files.image)) as file:
        if file.layout.pixels < LARGE:  # the header alone
            return False
    with suppress(UserError), files.source:
        scene = open_scene(predictor, files.source)
        if scene is not None:
            return prod(scene.input_size) >= LARGE or prod(scene.size) > IN_MEMORY
    return False


def _process_scene(job: Job, files: ImageFiles) -> Outcome:
    """Predict a scene by all processes; return its outcome on rank 0.

    Raises:
        UserError: it can't be read, and is the only image; or a file can't be written.
    """
    plan = job.world.on_main(partial(_plan, job, files))
    if isinstance(plan, Outcome):
        return plan
    errors = job.world.gather(_predict_missing(job, files, *plan))
    if error := next(filter(None, errors), ""):
        return Outcome(error=error)
    return _merge(job, files, plan[0]) if job.world.is_main else Outcome()


def _plan(job: Job, files: ImageFiles) -> tuple[Parts, list[PartKey]] | Outcome:
    """Return the parts of a scene, and which are missing; or the outcome if its mask is to be skipped or can't be named."""
    if files.index in job.done:
        return Outcome(is_skipped=True)
    try:
        check_length(files)
    except UserError as error:
        if job.is_single:
            raise
        return Outcome(error=str(error))
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
    missing = [key for key in parts.keys if not parts.path(key).exists()]
    total = len(parts.keys)
    if len(missing) < total:
        print_lines(
            f"{files.image}: keeping {total - len(missing)} of {count_of(total, 'part')}, which a job that stopped "
            "has predicted"
        )
    return parts, missing


def _name_job(job: Job, files: ImageFiles, blocks: int) -> str:
    """Return a digest of all that the mask depends on: the same for all jobs that predict the same mask."""
    values = {name: value for name, value in values_of(job.config).items() if name not in _SAME}
    predictor = job.predictor
    how = [predictor.threshold, predictor.tiling, predictor.format, blocks, predictor.device.type]
    how += [model.is_half for model in predictor.models]
    network = job.config.network
    own = None if network is None else read_sources("networks", network)
    scene = os.path.realpath(files.image), find_stamp(files.image)
    facts = json.dumps([__version__, values, how, scene, own], default=str)
    digest = hashlib.sha256(os.fsencode(facts))
    for name in job.config.model or [None]:
        with local_file(find_model(name)) as model:
            digest.update(model.read_bytes())
    return digest.hexdigest()[:12]


def _predict_missing(job: Job, files: ImageFiles, parts: Parts, missing: list[PartKey]) -> str:
    """Predict this process's share of the missing parts; return why the scene can't be read, or nothing.

    Raises:
        PartError: a part can't be written.
        UserError: the scene can't be read, and is the only image: the other processes need not end their shares.
    """
    world, count = job.world, len(missing)
    first, last = (count * rank // world.size for rank in (world.rank, world.rank + 1))
    share = missing[first:last]  # neighbours, which have windows in common
    threads = _count_threads(job)
    is_hidden = not world.is_main or hides_bars()
    # One core for each window: the number of threads decides the last bits of a convolution.
    try:
        with (
            files.source,
            one_core_each(max(threads, torch.get_num_threads())),
            explain_memory(job.predictor.tiling.window, str(files.image)),
            tqdm(total=len(share), unit="part", leave=False, disable=is_hidden) as bar,
        ):
            for key, ids in _predict_parts(job, files, parts, share, threads):
                parts.write(key, ids)
                bar.update()
    except UserError as error:
        if isinstance(error, PartError) or job.is_single:
            raise
        return str(error)
    return ""


def _count_threads(job: Job) -> int:
    """Return how many windows this process predicts at once, by its cores and half of its share of the free memory."""
    predictor, world = job.predictor, job.world
    if predictor.device.type == "cuda":
        return 1
    window = predictor.tiling.window**2 * max(each.bytes_per_pixel for each in predictor.networks)
    room = free_memory(predictor.device) // (2 * world.local_size * window)
    return max(1, min(job.config.workers or world.cores, int(room)))


def _predict_parts(
    job: Job, files: ImageFiles, parts: Parts, share: Sequence[PartKey], threads: int
) -> Iterator[tuple[PartKey, Ids]]:
    """Yield the class ids of parts, with pixels without data marked."""
    scene = open_scene(job.predictor, files.source)
    assert scene is not None
    is_map = files.source.place is not None
    for _, run in groupby(enumerate(share), lambda each: (each[1].block, each[1].row - each[0])):
        keys = [key for _, key in run]  # below each other
        heights = [parts.rows[key.row] for key in keys]
        rows, columns = range(heights[0].start, heights[-1].stop), parts.columns[keys[0].block]
        bands = predict_part(job.predictor, scene, rows, columns, threads=threads)
        for key, own, ids in zip(keys, heights, _cut(bands, map(len, heights)), strict=True):
            if is_map:
                scene.file.mark_nodata(ids, IGNORE_ID, (own.start, columns.start))
            yield key, ids


def _cut(bands: Iterator[Ids], heights: Iterable[int]) -> Iterator[Ids]:
    """Yield bands joined, and cut to these heights."""
    pieces: list[Ids] = []
    for height in heights:
        while sum(map(len, pieces)) < height:
            pieces.append(next(bands))
        joined = np.concatenate(pieces)
        pieces = [joined[height:]]
        yield joined[:height].copy()


def _merge(job: Job, files: ImageFiles, parts: Parts) -> Outcome:
    """Write the mask of all parts, remove them, and return the outcome."""
    labels, merged = job.predictor.labels, MergedMask(parts)
    prediction = Prediction((), labels, parts.size, parts.size)
    prediction.mask = cast(Mask, merged)
    existing = job.existing.intersection(files.written)
    with files.source, completing(existing) as kept:
        mark = files.marks.get(files.mask, files.mark)
        write_mask(prediction.mask, labels, files.mask, files.source.place, mark)
    parts.remove()
    counts = merged.counts.sum(axis=0)
    found = counts[: labels.num_classes]
    prediction.shares = (found / max(1, counts[:IGNORE_ID].sum())).tolist()
    return describe(job, files, prediction, kept)
