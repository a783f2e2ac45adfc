"""``python -m unet_ddp evaluate``: score a trained network on images and masks.

    python -m unet_ddp evaluate
    torchrun --nproc_per_node=4 -m unet_ddp evaluate --model best.pt --images DIR --masks DIR

All processes score their share; the main one writes and speaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from tqdm import tqdm

from unet_ddp.cli import parse
from unet_ddp.config import Limit, flag
from unet_ddp.data.pairs import Pair, find_pairs
from unet_ddp.distributed.launch import exit_with_error, run_on_all_ranks
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset, EvaluationSample
from unet_ddp.evaluation.files import result_files
from unet_ddp.evaluation.output import check_output, write_files
from unet_ddp.evaluation.report.gallery import make_gallery
from unet_ddp.evaluation.report.page import Page, figures, render
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.evaluation.table import scores_as_text
from unet_ddp.evaluation.trained import Trained, check_described, one_thread
from unet_ddp.evaluation.validation_split import own_validation, resizes_masks
from unet_ddp.runs import checkpoint
from unet_ddp.runs.tracking import show_files
from unet_ddp.runs.weights import SavedModel, find_model, read_model, with_scale


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a trained network on images and masks: Dice, IoU, precision, recall, boundaries, calibration.

    python -m unet_ddp evaluate --model best.pt --images DIR --masks DIR
    """

    model: Annotated[str | None, flag("FILE", "-m")] = None
    """The checkpoint (default: checkpoints/best.pt, else the newest best.pt of the runs in checkpoints)."""
    images: Annotated[str | None, flag("DIR")] = None
    """Folder of images to score, all of them (default: the validation images of the model's run)."""
    masks: Annotated[str | None, flag("DIR")] = None
    """Folder of their masks, with the values that the model was trained with."""
    output: Annotated[str | None, flag("DIR", "-o")] = None
    """Folder for scores.json, CSV files and report.html (default: evaluation, next to the model)."""
    threshold: Annotated[float | None, flag("P"), Limit(above=0, below=1)] = None
    """Two classes: count a pixel as foreground if its probability is at least P (default: the model's, else 0.5)."""
    tolerance: Annotated[float | None, flag("PIXELS"), Limit(at_least=0)] = None
    """Tolerated distance between boundaries in the boundary F-score (default: 0.75 percent of the image's diagonal)."""
    scale: Annotated[float | None, flag("FACTOR", "-s")] = None
    """Scale of the images for a checkpoint of another program, which does not contain it (default: 0.5)."""
    overwrite: bool = False
    """Replace existing results."""
    nproc: Annotated[int, flag("N"), Limit(at_least=1)] = 1
    """Start N processes on this machine, which share the images; the results are the same."""
    workers: Annotated[int | None, flag("N"), Limit(at_least=0)] = None
    """Data loading processes for each of them (default: by the number of cores)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    timeout: Annotated[float, flag("SECONDS"), Limit(above=0)] = 600.0
    """How long a process waits for the others before it gives up."""


def parse_evaluate(argv: Sequence[str]) -> EvaluateConfig:
    """Return the configuration of an evaluation.

    Raises:
        UserError: an unknown flag, or a value out of its limits.
    """
    config = parse(EvaluateConfig, argv, prog="python -m unet_ddp evaluate")
    if (config.images is None) != (config.masks is None):
        raise UserError("--images and --masks: use both or neither")
    return config


def main(argv: Sequence[str]) -> NoReturn:
    """The command line, then the story on every process."""
    try:
        config = parse_evaluate(argv)
    except UserError as mistake:
        exit_with_error(mistake)
    run_on_all_ranks(
        evaluate, config, nproc=config.nproc, device=config.device, timeout=config.timeout
    )


@dataclass(frozen=True)
class Task:
    """What is to be scored, and where its results go."""

    model: SavedModel
    source: Path
    best: dict[str, Any] | None
    """Training's "score" for this network, and its "epoch" from 0; None where none is told."""
    pairs: list[Pair]
    images: str
    """Which images those are, in words."""
    is_own: bool
    """Whether they are the validation images of the network's run."""
    resize_masks: bool
    threshold: float | None
    output: Path


def evaluate(config: EvaluateConfig, world: World) -> int:
    """Find model and pairs, score them, write and tell."""
    one_thread(world)
    task = world.on_main(lambda: find_task(config, world))
    trained = Trained.from_model(task.model, task.source, world.device)
    dataset = EvaluationDataset(task.pairs, trained, full_size=True, resize_masks=task.resize_masks)

    def progress(samples: Iterable[EvaluationSample], total: int) -> Iterable[EvaluationSample]:
        silent = None if world.is_main else True
        return tqdm(samples, total=total, unit="image", leave=False, disable=silent)

    evaluation = score_pairs(
        trained,
        dataset,
        world,
        threshold=task.threshold,
        tolerance=config.tolerance,
        workers=config.workers,
        progress=progress,
    )
    world.on_main(lambda: finish(task, evaluation, trained, dataset))
    return 0


def find_task(config: EvaluateConfig, world: World) -> Task:
    """Everything that can be wrong is found here, before the first image is scored."""
    source = find_model(config.model)
    output = Path(config.output) if config.output else source.parent / "evaluation"
    check_output(output, overwrite=config.overwrite)
    content = checkpoint.load(source)
    best = None if "optimizer" in content else content.get("best")  # last.pt is another epoch's
    model = with_scale(read_model(source), config.scale)
    labels = check_described(model, source)[1]
    if config.threshold is not None and labels.num_classes != 2:
        raise UserError(
            f"--threshold {config.threshold}: is for two classes, {source} has {labels.num_classes}"
        )
    if config.images is not None and config.masks is not None:
        pairs = find_pairs(Path(config.images), Path(config.masks))
        images = f"in {config.images}"
    else:
        pairs = own_validation(content, source, labels, progress=show_files, workers=world.cores)
        images = "of its run's validation"
    threshold = config.threshold or (model.threshold if labels.num_classes == 2 else None)
    is_own = config.images is None
    return Task(
        model, source, best, pairs, images, is_own, resizes_masks(content), threshold, output
    )


def finish(
    task: Task, evaluation: Evaluation, trained: Trained, dataset: EvaluationDataset
) -> None:
    """Write the files and show the scores."""
    about = {
        "model": str(task.source),
        "scored": f"{len(task.pairs)} images {task.images}",
    }
    files = result_files(evaluation, about)
    page = Page(
        title=f"Evaluation of {task.source}",
        facts=[
            ("model", str(task.source)),
            ("images", about["scored"]),
            *task_facts(task, evaluation),
        ],
        evaluation=evaluation,
        gallery=make_gallery(evaluation, trained, dataset),
        notes=list(task.model.notes),
    )
    write_files(task.output, {**files, "report.html": render(page)})
    for line in [*told(task, evaluation), *scores_as_text(evaluation)]:
        print(line)
    if task.is_own and task.best is not None:
        print(
            f"as training's validation scores it (scale {trained.preprocessing.scale:g}, the more "
            f"probable class): Dice {evaluation.dice_as_trained:.6f}; the checkpoint says "
            f"{task.best['score']:.6f}"
        )
    print(f"wrote {task.output}/: {', '.join(sorted([*files, 'report.html']))}")


def task_facts(task: Task, evaluation: Evaluation) -> list[tuple[str, str]]:
    """What else the report's head says."""
    trained = [("trained for", f"{task.best['epoch'] + 1} epoch(s)")] if task.best else []
    return [*trained, *figures(evaluation)]


def told(task: Task, evaluation: Evaluation) -> list[str]:
    """What was scored, and how."""
    lines = [f"model: {task.source}", *(f"  {note}" for note in task.model.notes)]
    how = (
        f"foreground from probability {evaluation.threshold:g} on"
        if evaluation.threshold is not None
        else "the most probable class"
    )
    lines.append(f"scored: {len(task.pairs)} images {task.images}, at their own size; {how}")
    return lines
