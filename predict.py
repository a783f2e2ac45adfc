"""Predict the masks of images with a trained network, or several.

    python predict.py image.jpg [more.jpg folder/ ...]
    torchrun --nproc_per_node=4 predict.py folder/ --output masks/ --rle submission.csv

The story of a job: find the images, load the networks, then predict and write, and gather at the
end what is one file for all. Under torchrun every process takes its share of the images.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.launch import exit_with_error, run_on_all_ranks
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, one_line
from unet_ddp.prediction.config import PredictConfig, parse_predict
from unet_ddp.prediction.inputs import find_images
from unet_ddp.prediction.outputs.files import Part, in_order, remove_on_signals
from unet_ddp.prediction.outputs.masks import (
    read_ids,
    write_mask,
    write_overlay,
    write_probabilities,
)
from unet_ddp.prediction.outputs.names import Outputs, check_probabilities, is_done, name_outputs
from unet_ddp.prediction.pipeline import Task, in_threads, one_core_each, predict_all, predict_one
from unet_ddp.prediction.prediction import Prediction
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.weights import find_model

FEW = 20  # images; of more, a summary is printed instead of a line for each
PATIENCE = 86400.0  # seconds that a process waits at the end for those that are still predicting


def main(argv: Sequence[str] | None = None) -> int:
    """0; 1 where some images of several could not be predicted; 2 after a mistake."""
    words = sys.argv[1:] if argv is None else argv
    if "RANK" in os.environ:
        try:
            config = parse_predict(words)
        except UserError as mistake:
            exit_with_error(mistake)
        run_on_all_ranks(predict, config, nproc=1, device=config.device, timeout=PATIENCE)
    try:
        config = parse_predict(words)
        return predict(config, World(device=pick_device(config.device)))
    except UserError as mistake:
        print(f"error: {one_line(mistake)}", file=sys.stderr)
        return 2


@dataclass(frozen=True)
class Job:
    """All that a prediction needs, on one process."""

    config: PredictConfig
    world: World
    images: list[Path]
    outputs: list[Outputs]
    predictor: Predictor
    runs: Part | None
    """Run lengths of this process's images."""
    outlines: Part | None


@dataclass(frozen=True)
class Report:
    """What there is to say of one image."""

    line: str = ""
    mistake: str = ""
    only: str = ""
    """The class, where there is one only."""
    is_new: bool = True
    """Not left out because its files were there."""


def predict(config: PredictConfig, world: World) -> int:
    """A job, from the names of its images to its files."""
    images, outputs = world.on_main(lambda: find(config))
    predictor = load(config, world)
    world.on_main(lambda: check_probabilities(outputs, config, predictor.labels))
    runs, outlines = (
        Part(Path(name), world.rank) if name else None for name in (config.rle, config.polygons)
    )
    job = Job(config, world, images, outputs, predictor, runs, outlines)
    parts = [part for part in (runs, outlines) if part is not None]
    try:
        counts = summarise(job, follow(job, work(job)))
        for part in parts:
            part.close()
        totals = [sum(column) for column in zip(*world.gather(counts), strict=True)]
        world.on_main(lambda: write_lists(job))
        if world.is_main:
            say_end(job, *totals)
        world.gather(None)  # the parts are read by now
    finally:
        for part in parts:
            part.drop()
    return 1 if totals[0] else 0


def find(config: PredictConfig) -> tuple[list[Path], list[Outputs]]:
    """The images and their files."""
    images = find_images(config.inputs)
    return images, name_outputs(images, config)


def load(config: PredictConfig, world: World) -> Predictor:
    """The networks, and what is said of them."""
    given: Sequence[str | None] = config.model or [None]
    paths = [find_model(name) for name in given]
    predictor = Predictor.from_checkpoint(
        *paths,
        device=world.device,
        scale=config.scale,
        tile=config.tile,
        overlap=config.overlap,
        tta=config.tta,
        threshold=config.threshold,
    )
    if config.rle:
        from unet_ddp.prediction.outputs.rle import check_two_classes

        check_two_classes(predictor.labels.num_classes)
    if world.is_main:
        print(f"model: {', '.join(map(str, paths))}")
        for note in predictor.notes:
            print(f"  {note}")
        if predictor.threshold is not None:
            name = predictor.labels.class_names[1]
            print(f"  threshold: {name} where its probability is {predictor.threshold:g} or more")
    return predictor


def work(job: Job) -> Iterator[Report]:
    """Predict and write this process's share of the images; a report of each."""
    config, world, predictor = job.config, job.world, job.predictor
    mine = [Task(n, job.images[n]) for n in range(world.rank, len(job.images), world.size)]
    old = [
        config.skip_existing and is_done(job.outputs[task.number], config, predictor.labels)
        for task in mine
    ]
    left = [task for task, is_old in zip(mine, old, strict=True) if not is_old]
    keep = config.probabilities != "none"
    threads = config.workers or min(len(mine) or 1, max(1, world.cores))
    in_batches = world.device.type == "cuda" or config.batch_size is not None
    with one_core_each(threads) if len(mine) > 1 else nullcontext():
        again = (task for task, is_old in zip(mine, old, strict=True) if is_old)
        yield from in_threads(partial(list_again, job), again, threads, ahead=4 * threads)
        if in_batches:
            size = config.batch_size or 8
            found = predict_all(predictor, left, batch_size=size, threads=threads, keep=keep)
            yield from in_threads(
                lambda pair: deliver(job, *pair), found, threads, ahead=4 * threads
            )
        else:
            predictor.at_once = threads
            whole = partial(read_to_write, job, keep=keep)
            yield from in_threads(whole, left, threads, ahead=4 * threads)


def read_to_write(job: Job, task: Task, *, keep: bool) -> Report:
    """All of one image."""
    return deliver(job, task, predict_one(job.predictor, task.path, keep=keep))


def deliver(job: Job, task: Task, found: Prediction | UserError) -> Report:
    """Write what becomes of one prediction."""
    if isinstance(found, UserError):
        if len(job.images) == 1:
            raise found
        return Report(mistake=str(found))
    config, outputs = job.config, job.outputs[task.number]
    if config.overlay:
        with_image = job.predictor.open(task.path, scale=1.0)
        write_overlay(found, with_image, outputs.overlay)
        with_image.rows.close()
    if config.probabilities != "none":
        write_probabilities(found, outputs.base, config.probabilities)
    add_to_lists(job, task, found)
    write_mask(found, outputs.mask)  # last: it says that the image is done
    names = job.predictor.labels.class_names
    shares = [(n, share) for n, share in zip(names, found.shares, strict=True) if share > 0]
    line = f"{task.path} -> {outputs.mask}: {', '.join(f'{n} {s:.1%}' for n, s in shares)}"
    return Report(line, only=shares[0][0] if len(shares) == 1 else "")


def list_again(job: Job, task: Task) -> Report:
    """What an image whose files are there already gives to the lists."""
    if job.runs is not None or job.outlines is not None:
        mask = job.outputs[task.number].mask
        ids = read_ids(mask, job.predictor.labels)
        add_to_lists(job, task, Prediction.of_ids(ids, job.predictor.labels))
    return Report(is_new=False)


def add_to_lists(job: Job, task: Task, found: Prediction) -> None:
    """Its run lengths and outlines, where they are asked for."""
    if job.runs is not None:
        from unet_ddp.prediction.outputs.rle import csv_row, encode_rle

        runs = encode_rle(found.ids, job.config.rle_order)
        job.runs.add(task.number, csv_row(task.path.name, runs))
    if job.outlines is not None:
        from unet_ddp.prediction.outputs.polygons import as_text, outline

        features = outline(found.ids, found.labels, task.path.name)
        job.outlines.add(task.number, as_text(features))


def write_lists(job: Job) -> None:
    """The files of all images together, in their order."""
    if job.config.rle:
        from unet_ddp.prediction.outputs.rle import write_rle

        path = Path(job.config.rle)
        write_rle(path, in_order(path, job.world.size))
    if job.config.polygons:
        from unet_ddp.prediction.outputs.polygons import write_features

        path = Path(job.config.polygons)
        write_features(path, in_order(path, job.world.size))


def follow(job: Job, reports: Iterator[Report]) -> Iterator[Report]:
    """The reports, with a bar over all processes' images where there are several."""
    total, size = len(job.images), job.world.size
    hidden = True if total == 1 or not job.world.is_main else None
    with tqdm(total=total, unit="image", disable=hidden, dynamic_ncols=True) as bar:
        for report in reports:
            yield report
            bar.update(min(size, total - bar.n))  # the others are about as far


def summarise(job: Job, reports: Iterator[Report]) -> tuple[int, int, int]:
    """Say what there is to say; failed images, those of one class only, those left out."""
    failed = lonely = left_out = 0
    for report in reports:
        failed += bool(report.mistake)
        lonely += bool(report.only)
        left_out += not report.is_new
        if report.mistake:
            tqdm.write(f"error: {one_line(report.mistake)}", file=sys.stderr)
        elif report.line and len(job.images) <= FEW:
            warning = f"; warning: nothing but {report.only} was found in it" if report.only else ""
            tqdm.write(report.line + warning)
    return failed, lonely, left_out


def say_end(job: Job, failed: int, lonely: int, left_out: int) -> None:
    """How it went with all of them."""
    total = len(job.images)
    if total > FEW:
        print(f"{total - failed - left_out} masks written, as {job.outputs[0].mask}")
        if lonely:
            print(f"warning: nothing but one class was found in {lonely} of them")
    if left_out:
        print(f"{left_out} images left out: their files are there already")
    for name in (job.config.rle, job.config.polygons):
        if name:
            print(f"{name}: {total - failed} images")
    if failed:
        print(f"{failed} of {total} images could not be predicted", file=sys.stderr)


if __name__ == "__main__":
    remove_on_signals()
    sys.exit(main())
