"""`unet_ddp.evaluate`: what the command prints, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Literal

import torch

from unet_ddp.cli import parse
from unet_ddp.cli.python import to_words
from unet_ddp.cli.signature import Data
from unet_ddp.commands import evaluate as command
from unet_ddp.commands.data_arguments import giving_data
from unet_ddp.commands.evaluate import EvaluateConfig
from unet_ddp.commands.trained_run import network_of
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.distributed.defaults import usual_defaults
from unet_ddp.distributed.device import pick_device
from unet_ddp.distributed.world import World
from unet_ddp.errors import one_line
from unet_ddp.evaluation.results import ClassScores
from unet_ddp.evaluation.tables import summary
from unet_ddp.prediction.backends import warn_of_changes


@dataclass(frozen=True)
class EvaluationResult:
    """The scores of a network on images and masks, from the pixels of all of them; `print(result)` shows a table.

    Example:
        result = unet_ddp.evaluate("checkpoints/first", images="test/imgs", masks="test/masks")
        print(result.dice, result.classes[1].recall, min(result.per_image, key=result.per_image.get))
    """

    images: int
    """Number of images."""
    dice: float
    """The foreground's Dice, 0 to 1; of more than two classes, the mean over those that occur."""
    iou: float
    """The same of IoU."""
    pixel_accuracy: float
    """Share of the pixels whose class is predicted."""
    calibration_error: float
    """Expected calibration error, 0 to 1."""
    threshold: float | None
    """Least probability of the foreground; None for the most probable class."""
    best_threshold: float | None
    """For two classes, the threshold of the highest Dice on these images."""
    classes: list[ClassScores]
    """Of each class `name`, `dice`, `iou`, `precision`, `recall`, `boundary_f`; nan without pixels to score."""
    objects: dict[str, float]
    """Scores of numbered objects by name, as "ap_50"; empty for other masks."""
    intervals: dict[str, tuple[float, float]]
    """95 % intervals by score, as "Dice"; empty for less than 6 images or groups."""
    per_image: dict[str, float]
    """The score of each image by its name: Dice, or that of objects; nan with nothing to score."""
    text: str = field(repr=False)
    """The lines of the command."""

    def __str__(self) -> str:
        return self.text


@usual_defaults()
def evaluate(
    model: str | PathLike[str],
    images: Data = None,
    masks: Data = None,
    *,
    network: str | None = None,
    reader: tuple[str, ...] = (),
    threshold: float | None = None,
    tolerance: float | None = None,
    scale: float | None = None,
    workers: int | None = 0,
    precision: Literal["auto", "float32"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> EvaluationResult:
    """Return the scores of a trained network, as `python -m unet_ddp evaluate` prints them; no file is written.

    Args:
        model: a checkpoint, a run's folder, or the run that `train` has returned.
        images: as in `train`: a folder, arrays, or a data set; None for the validation images of the model's run.
        masks: the same, of their masks.
        network: "module:function" of your own network; that of a run is known.
        reader: readers of your own for other kinds of files, each as "module:Class".
        threshold: two classes: least probability of the foreground, 0 to 1; None for the model's, else 0.5.
        tolerance: pixels that a boundary may be off; None for 0.75 % of the diagonal.
        scale: of the images, for another program's checkpoint.
        workers: reading processes; None: by the number of cores.
        precision: auto, or float32.
        device: auto, cpu or cuda.

    Raises:
        UserError: model, images or masks can't be used.
    """
    network = network or network_of(model)
    with giving_data({"images": images, "masks": masks}) as places:
        given = {
            "model": model, "reader": reader, "threshold": threshold, "tolerance": tolerance,
            "scale": scale, "workers": workers, "precision": precision, "device": device, **places,
        }  # fmt: skip
        return _evaluate(given, network)


def _evaluate(given: Mapping[str, object], network: str | None) -> EvaluationResult:
    argv = [word for name, value in given.items() for word in to_words(name, value, EvaluateConfig)]
    config = parse(EvaluateConfig, argv, prog="unet_ddp.evaluate")
    config = replace(config, network=network)  # it may be a class
    use_own_readers(config.reader)
    job = command.find_job(config, writes=False)
    with _one_thread(config.device):
        scored = command.score(config, job, World(device=pick_device(config.device)))
    evaluation, predictor, _ = scored
    warn_of_changes(predictor.models)
    uncertainty = command.measure_scores(job, evaluation)
    lines = command.describe_scores(job, evaluation, predictor, uncertainty)
    whole, tally = summary(evaluation), evaluation.tally
    return EvaluationResult(
        images=whole["images"], dice=whole["dice"], iou=whole["iou"],
        pixel_accuracy=whole["pixel_accuracy"], calibration_error=whole["calibration_error"],
        threshold=evaluation.threshold, best_threshold=whole.get("best_threshold"),
        classes=evaluation.classes, objects=tally.scores if tally else {},
        intervals=uncertainty.scores, text="\n".join(map(one_line, lines)),
        per_image={record.name: record.score for record in evaluation.records},
    )  # fmt: skip


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """Have a CPU compute in one thread: their number decides the last bits of a convolution."""
    before = torch.get_num_threads()
    if pick_device(device).type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
