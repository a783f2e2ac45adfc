"""The report and the picture of a run, in its folder."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from unet_ddp.data.drawing import draw_samples
from unet_ddp.data.formats.read import read_image, read_mask
from unet_ddp.data.pairs import Pair
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.output import write_whole
from unet_ddp.evaluation.report.gallery import make_gallery
from unet_ddp.evaluation.report.page import Page, figures, render, show
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.evaluation.trained import Trained
from unet_ddp.evaluation.validation_split import resizes_masks
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.checkpoint import load
from unet_ddp.runs.weights import SavedModel, read_model

_SAMPLES = 4


def report_run(
    folder: Path,
    pairs: list[Pair],
    world: World,
    *,
    notes: Sequence[str] = (),
    workers: int | None = None,
) -> Path:
    """Write report.html from what the folder holds and what its best network makes of `pairs`.

    They are scored at the network's scale, by the most probable class, on all ranks: as training's
    validation does. Without them, or without best.pt, the page has the curves alone.

    Raises:
        UserError: a file that can't be read or written, on every rank.
    """
    source = folder / "best.pt"
    model, best, resize_masks = world.on_main(lambda: _read_best(source))
    evaluation = None
    if model is not None and pairs:
        trained = Trained.from_model(model, source, world.device)
        dataset = EvaluationDataset(pairs, trained, full_size=False, resize_masks=resize_masks)
        evaluation = score_pairs(trained, dataset, world, threshold=None, workers=workers)

    def write() -> Path:
        gallery = make_gallery(evaluation, trained, dataset) if evaluation else []
        history = _rows(folder / "metrics.csv")
        page = Page(
            title=folder.absolute().name,
            facts=_facts(model, best, evaluation, len(history)),
            evaluation=evaluation,
            gallery=gallery,
            history=history,
            settings=_settings(folder / "config.yaml"),
            notes=notes,
        )
        path = folder / "report.html"
        with told(path):
            write_whole(path, render(page))
        return path

    return world.on_main(write)


def _read_best(path: Path) -> tuple[SavedModel | None, dict[str, Any] | None, bool]:
    """The best network, its "score" and "epoch" (from 0), and whether its run resized masks."""
    if not path.is_file():
        return None, None, False
    content = load(path)
    return read_model(path), content.get("best"), resizes_masks(content)


def _facts(
    model: SavedModel | None,
    best: dict[str, Any] | None,
    evaluation: Evaluation | None,
    epochs: int,
) -> list[tuple[str, str]]:
    """What stands at the head of the page."""
    facts = []
    if best is not None:
        of = f" of {epochs}" if epochs else ""
        facts.append(("validation Dice", f"{show(best['score'])} (epoch {best['epoch'] + 1}{of})"))
    if evaluation is not None:
        facts += figures(evaluation)[1:]
    if model is not None:
        facts.append(("network", str(model.architecture)))
    return facts


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, dict) else {}


def write_samples(folder: Path, pairs: list[Pair], device: torch.device) -> Path | None:
    """samples.png: what the best network makes of a few of `pairs`; None without either.

    Raises:
        UserError: it can't be written, or an image can't be read any more.
    """
    best, path, samples = folder / "best.pt", folder / "samples.png", []
    if not best.is_file() or not pairs:
        return None
    predictor = Predictor.from_checkpoint(best, device=device.type)
    scale = predictor.preprocessing.scale
    for pair in pairs[:: max(1, len(pairs) // _SAMPLES)][:_SAMPLES]:
        image = read_image(pair.image, predictor.format, scale=scale)
        truth = predictor.labels.to_ids(read_mask(pair.mask, scale=scale), pair.mask)
        samples.append((image, truth, predictor.predict_scaled(image, image.shape[:2]).ids))
    with told(path):
        draw_samples(samples, predictor.labels, path)
    return path


def write_reports(
    folder: Path, pairs: list[Pair], world: World, workers: int | None, log: Callable[[str], None]
) -> None:
    """Write samples.png and report.html of a run that has ended, and log where they are.

    The run is saved: a failure here is a warning.
    """
    best = folder / "best.pt"
    try:
        picture = world.on_main(lambda: write_samples(folder, pairs, world.device))
        if picture is not None:
            score = load(best)["best"]
            log(f"best: epoch {score['epoch'] + 1}, validation Dice {score['score']:.4f}; {best}")
            log(f"samples: {picture} (image, truth, prediction)")
        page = report_run(folder, pairs, world, workers=workers)
        log(f"report: {page}")
    except UserError as error:
        log(f"warning: {error}; write it later with python -m unet_ddp report {folder}")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What keeps `path` from being written, as one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
