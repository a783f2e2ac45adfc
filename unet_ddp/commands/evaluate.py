"""``python -m unet_ddp evaluate``: score a trained network on images and masks.

    python -m unet_ddp evaluate
    torchrun --nproc_per_node=4 -m unet_ddp evaluate --model best.pt --images DIR --masks DIR

All processes score their share; the main one writes the results and prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import numpy as np
import torch

from unet_ddp.checkpoints.run_files import EVALUATION_FILES
from unet_ddp.checkpoints.weights import find_model, read_model
from unet_ddp.cli import parse
from unet_ddp.data.groups import group_names
from unet_ddp.data.labels import Labels
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.read import read_mask, use_own_readers
from unet_ddp.distributed.device import predicts_in_bfloat16
from unet_ddp.distributed.launch import parse_program, run_on_all_ranks
from unet_ddp.distributed.world import World
from unet_ddp.errors import Limit, UserError, count_of, join_some, print_lines
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.job import Job
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.evaluation.tables import headline, result_files, terminal_table, write_results
from unet_ddp.evaluation.trained_on import warn_of_trained
from unet_ddp.evaluation.uncertainty import Uncertainty, measure
from unet_ddp.evaluation.validation_split import (
    advise_given,
    advising,
    find_given,
    rebuild,
    resizes_masks,
)
from unet_ddp.files import as_local_path, check_no_input, check_writable, is_address
from unet_ddp.heads import find_head
from unet_ddp.metrics.scores import count_classes
from unet_ddp.prediction.backends import build_model, check_described
from unet_ddp.prediction.load import indent
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.settings import flag, joined, settings_of


@dataclass(frozen=True)
@joined("evaluate")
class EvaluateConfig:
    """Score a trained network on images and masks: Dice, IoU, precision, recall, boundaries, calibration.

    python -m unet_ddp evaluate --model best.pt --images DIR --masks DIR
    """

    model: Annotated[str | None, flag("FILE", "-m")] = None
    """The checkpoint, or its address (default: that of the newest run in checkpoints)."""
    network: Annotated[str | None, flag("MODULE:FUNCTION")] = None
    """The network of your own that the checkpoint was trained with: a checkpoint starts no code."""
    images: Annotated[str | None, flag("DIR")] = None
    """Folder of images, or a pack, to score all of them (default: the validation images of the model's run)."""
    masks: Annotated[str | None, flag("DIR")] = None
    """Folder of their masks, with the values that the model was trained with."""
    reader: Annotated[tuple[str, ...], flag("MODULE:CLASS ...")] = ()
    """Reader of your own for other kinds of files; docs/own_parts.md."""
    output: Annotated[str | None, flag("DIR", "-o")] = None
    """Folder for scores.json, CSV files and report.html (default: evaluation, next to the model)."""
    threshold: Annotated[float | None, flag("P"), Limit(above=0, below=1)] = None
    """Two classes: count a pixel as foreground if its probability is at least P (default: the model's, else 0.5)."""
    tolerance: Annotated[float | None, flag("PIXELS"), Limit(at_least=0)] = None
    """Tolerated distance between boundaries in the boundary F-score (default: 0.75 percent of the image's diagonal)."""
    against: Annotated[str | None, flag("OTHER")] = None
    """Compare with another network on the same images, with a 95 % interval: its checkpoint or run folder, or the folder or per_image.csv of its evaluation."""
    scale: Annotated[float | None, flag("FACTOR", "-s")] = None
    """Scale of the images for a checkpoint of another program, which does not contain it (default: 0.5)."""
    overwrite: bool = False
    """Replace existing results."""
    nproc: Annotated[int, flag("N"), Limit(at_least=1)] = 1
    """Start N processes on this machine, which share the images; the results are the same."""
    workers: Annotated[int | None, flag("N"), Limit(at_least=0)] = None
    """Data loading processes for each of them (default: by the number of cores, at most 16)."""
    precision: Literal["auto", "float32"] = "auto"
    """auto: bfloat16 if the network was trained in it and this CPU is faster in it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    log: Literal["text", "json"] = "text"
    """json: print a JSON object in each line, also for warnings and errors, all on standard output; docs/files.md."""
    timeout: Annotated[float, flag("SECONDS"), Limit(above=0, at_most=1_000_000)] = 600.0
    """Longest wait of a process for the others before it gives up."""

    def check(self) -> None:
        """Refuse masks without images; images alone are a pack."""
        if self.images is None and self.masks is not None:
            raise UserError("--images and --masks: use both or neither")


def main(argv: Sequence[str]) -> NoReturn:
    """Parse the command line and evaluate on every process."""
    config = parse_program(partial(parse, EvaluateConfig), argv, "evaluate")
    run_on_all_ranks(
        evaluate, config, nproc=config.nproc, device=config.device, timeout=config.timeout
    )


def evaluate(config: EvaluateConfig, world: World) -> int:
    """Find model and pairs, score them, write and print the results."""
    if world.device.type == "cpu":
        torch.set_num_threads(1)  # their number decides the last bits of a convolution
    use_own_readers(config.reader)
    job = world.on_main(lambda: find_job(config))
    compare = None
    if config.against is not None:
        from unet_ddp.extras.against.other import score_other

        def score_job(other: Job) -> Evaluation:
            evaluation, predictor, _ = score(config, other, world)
            world.on_main(lambda: print_lines(*predictor.notes))
            return evaluation

        compare = score_other(
            config.against, job, world, threshold=config.threshold, score=score_job
        )
    scored = score(config, job, world)
    world.on_main(lambda: finish(job, *scored, compare(scored[0]) if compare else []))
    return 0


def score(
    config: EvaluateConfig, job: Job, world: World
) -> tuple[Evaluation, Predictor, EvaluationDataset]:
    """Return the scores of a job's model on its pairs, and what they were scored with, on every rank."""
    loaded = build_model(
        job.model,
        job.source,
        world.device,
        fold=False,
        bfloat16=all(world.gather(predicts_in_bfloat16(config.precision))),
        network=config.network,
    )
    predictor = Predictor([loaded], device=world.device)
    resize_masks = resizes_masks(job.model.run)
    dataset = EvaluationDataset(job.pairs, predictor, full_size=True, resize_masks=resize_masks)
    with advising(*(each.flag for each in settings_of(EvaluateConfig).values())):
        evaluation = score_pairs(
            predictor,
            dataset,
            world,
            threshold=job.threshold,
            tolerance=config.tolerance,
            workers=config.workers,
        )
    return evaluation, predictor, dataset


def find_job(config: EvaluateConfig, *, writes: bool = True) -> Job:
    """Find model and pairs, and all mistakes before the first image is scored."""
    source = find_model(config.model)
    output = _check_output(config, source) if writes else source.parent / "evaluation"
    model = read_model(source, config.scale)
    _, labels, preprocessing = check_described(model, source)
    if config.threshold is not None and not labels.is_binary:
        raise UserError(
            f"--threshold {config.threshold:g}: is for two classes, {source} has {labels.num_classes} and "
            f"takes {find_head(labels).decision}; leave it out"
        )
    groups: dict[str, str] = {}
    if config.images is None:
        data = rebuild(model.run, source, labels, advice=advise_given(model.run))
        pairs, groups = data.split.validation, data.groups
    else:
        metres = preprocessing.ground_resolution
        pairs = find_given(config.images, config.masks, model.run, labels, metres)
        if labels.palette is not None and labels.names is not None:
            from unet_ddp.extras.palettes.rules import check_order

            check_order(config.masks, dict(zip(labels.names, labels.values, strict=True)))
    if labels.may_overlap or pairs.scanned is not None:
        from unet_ddp.extras.overlap.checks import check_packed_classes

        check_packed_classes(pairs, labels, config.images or f"{source}: the data of its run")
    if config.images is not None and pairs.scanned is not None:
        from unet_ddp.extras.packs.scored import check_scored

        check_scored(pairs, labels)
    threshold = config.threshold or model.threshold
    return Job(model, source, pairs, groups, config.images, config.masks, threshold, output)


def _check_output(config: EvaluateConfig, source: Path) -> Path:
    """Return the folder for the results, which can be written and has none, or may lose them."""
    if is_address(source) and config.output is None:
        raise UserError(f"{source}: name a folder for the results with --output")
    output = source.parent / "evaluation"
    if config.output:
        output = as_local_path(config.output, "--output")
    paths = [output / name for name in EVALUATION_FILES]
    existing = [path for path in paths if path.exists()]
    if existing and not config.overwrite:
        raise UserError(f"{existing[0]} already exists; use --overwrite, or another --output")
    check_no_input([("--output", path) for path in existing], [("model", source)])
    check_writable(output, "--output")
    return output


def finish(
    job: Job,
    evaluation: Evaluation,
    predictor: Predictor,
    dataset: EvaluationDataset,
    lines: Sequence[str],
) -> None:
    """Write the files, and print the scores and further lines, or refuse masks without one of the classes."""
    from unet_ddp.extras.report.write import render_evaluation

    uncertainty = measure_scores(job, evaluation)
    scored = _describe_images(job)
    facts = [("model", str(job.source)), ("images", scored)]
    best = job.model.run.get("best")  # training's "score", and its "epoch" from 0
    if best is not None:
        facts.append(("trained for", count_of(best["epoch"] + 1, "epoch")))
    facts += headline(evaluation)
    about = {"model": str(job.source), "scored": scored}
    files = result_files(evaluation, about, uncertainty.to_dict())
    title = f"Evaluation of {job.source}"
    files["report.html"] = render_evaluation(title, facts, evaluation, predictor, dataset)
    write_results(job.output, files)
    print_lines(*describe_scores(job, evaluation, predictor, uncertainty))
    print_lines(*lines, f"wrote {job.output}/: {', '.join(sorted(files))}")


def _describe_images(job: Job) -> str:
    place = "of its run's validation set" if job.images is None else f"in {job.images}"
    return f"{count_of(len(job.pairs), 'image')} {place}"


def measure_scores(job: Job, evaluation: Evaluation) -> Uncertainty:
    """Return the intervals of the scores, or refuse masks without one of the classes."""
    is_given = job.images is not None
    if is_given and not all(true for _, true, _ in count_classes(evaluation.confusion)):
        check_threshold(job.pairs, evaluation.labels)
    return measure(evaluation, {**group_names(job.pairs, None), **job.groups})


def describe_scores(
    job: Job, evaluation: Evaluation, predictor: Predictor, uncertainty: Uncertainty
) -> Iterator[str]:
    """Yield the lines that are printed."""
    how = predictor.head.decision
    if evaluation.threshold is not None:
        how = f"foreground from probability {evaluation.threshold:g} on"
    yield f"model: {job.source}"
    yield from map(indent, list_notes(predictor))
    yield f"scored: {_describe_images(job)}, at their own size; {how}"
    yield from map(indent, warn_of_trained(job))
    yield from terminal_table(evaluation)
    counts = zip(evaluation.classes, count_classes(evaluation.confusion), strict=True)
    absent = [row.name for row, (_, true, predicted) in counts if predicted and not true]
    if absent and job.images is not None:
        yield f"in no mask, but predicted: {join_some(absent, 5)}; do the masks mark these classes?"
    yield from uncertainty.describe()
    best = job.model.run.get("best")
    if job.images is None and best is not None:
        saved = math.nan if best["dice"] is None else best["dice"]
        yield (
            f"as training's validation scores it (scale {predictor.preprocessing.scale:g}, without a "
            f"threshold): Dice {evaluation.dice_as_trained:.6f}; the checkpoint says {saved:.6f}"
        )


def list_notes(predictor: Predictor) -> list[str]:
    """Return what a user should know of the networks, and the precision that changes the scores."""
    if any(model.is_half for model in predictor.models):
        precision = "in bfloat16, as it was trained (--precision float32 turns it off)"
        return [*predictor.notes, precision]
    return predictor.notes


def check_threshold(pairs: Pairs, labels: Labels) -> None:
    """Refuse masks of which all pixels are on one side of the network's threshold, though they differ."""
    if labels.threshold is None:
        return
    for pair in pairs:
        with pairs.local(pair.mask) as mask:
            kept = np.unique(read_mask(mask, labels=labels))
        if labels.ignore is not None:
            kept = kept[kept != labels.ignore]
        if len(kept) > 1:
            raise UserError(
                f"{pair.mask}: all masks are on one side of --mask-threshold {labels.threshold}, with "
                f"which the network was trained (its values are {labels.show(kept[0])} to "
                f"{labels.show(kept[-1])}); give masks like those of its training"
            )
