"""report.html and samples.png, written into the folder of a run."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from unet_ddp.checkpoints.weights import SavedModel, read_model
from unet_ddp.cli.recipes import Scalar, read_settings
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData, RareKind
from unet_ddp.data.drawing import draw_mask, save_picture, to_rgb
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import Ids
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.base import Pixels
from unet_ddp.distributed.device import is_faster_in_bfloat16
from unet_ddp.distributed.world import World
from unet_ddp.errors import RunError, UserError, print_lines
from unet_ddp.evaluation.dataset import EvaluationDataset
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.scoring import score_pairs
from unet_ddp.evaluation.tables import headline
from unet_ddp.evaluation.validation_split import resizes_masks
from unet_ddp.extras.report.gallery import Picture, make_gallery
from unet_ddp.extras.report.page import Page, render
from unet_ddp.extras.report.provenance import list_provenance
from unet_ddp.extras.report.rare import describe_rare
from unet_ddp.files import replacing, write_errors, write_text
from unet_ddp.metrics.scores import show
from unet_ddp.prediction.backends import LoadedModel, build_model
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.runs.epoch_scores import read_epochs
from unet_ddp.runs.writers import read_rows

_SAMPLES = 4
_OUTSIDE = UserError, RunError, OSError, MemoryError, ImportError  # no fault of the code
_GAP = 4  # pixels between pictures


def _read_shown(recipe: Path) -> dict[str, Any]:
    """Return the settings in a run's recipe as they are written there; none without it."""
    if not recipe.exists():
        return {}
    return {name: _as_written(value) for name, value in read_settings(recipe).items()}


def _as_written(value: Any) -> Any:
    if isinstance(value, list):
        return f"[{', '.join(str(_as_written(each)) for each in value)}]"
    return value.text if isinstance(value, Scalar) else value


def write_report(
    folder: Path,
    pairs: Pairs,
    world: World,
    *,
    rare: Sequence[RareKind] = (),
    log: Callable[[str], None] = print_lines,
    notes: Sequence[str] = (),
    workers: int | None = None,
    network: str | None = None,
) -> Path:
    """Score the run's best network on `pairs`, write report.html, and return its path.

    All ranks score, as validation does. What is `rare` and predicted badly is logged, too. Without pairs or
    best.pt the page has the curves alone, and `notes` say why; for `network` see `build_model`. A file that can't be read or written is a UserError on every rank.
    """
    source, path, evaluation = folder / "best.pt", folder / "report.html", None
    model = world.on_main(lambda: read_model(source) if source.is_file() else None)
    if model is not None and pairs:
        bfloat16 = all(world.gather(is_faster_in_bfloat16()))
        loaded = build_model(
            model, source, world.device, bfloat16=bfloat16, network=network, fold=False
        )
        predictor, dataset = _open(loaded, model, pairs, world.device)
        evaluation = score_pairs(
            predictor, dataset, world, threshold=predictor.threshold, workers=workers
        )

    def write() -> Path:
        pictures = make_gallery(evaluation, predictor, dataset) if evaluation else []
        badly = describe_rare(evaluation, rare) if evaluation else []
        for line in [*(loaded.notes if evaluation else []), *badly]:
            log(line)
        text = render(_fill_page(folder, model, evaluation, pictures, [*notes, *badly]))
        with write_errors(path):
            write_text(path, text, durable=True)
        return path

    return world.on_main(write)


def _fill_page(
    folder: Path,
    model: SavedModel | None,
    evaluation: Evaluation | None,
    pictures: Sequence[Picture],
    notes: Sequence[str],
) -> Page:
    """Return the page about a run, with what its folder has."""
    history = read_epochs(folder)
    return Page(
        title=folder.absolute().name,
        facts=_facts(model, evaluation, len(history)),
        evaluation=evaluation,
        pictures=pictures,
        history=history,
        chosen_by=model.score_name if model else "Dice",
        range_test=read_rows(folder / "learning_rate.csv"),
        provenance=list_provenance(folder),
        settings=_read_shown(folder / "config.yaml"),
        notes=notes,
    )


def _open(
    loaded: LoadedModel, model: SavedModel, pairs: Pairs, device: torch.device
) -> tuple[Predictor, EvaluationDataset]:
    """Return a network and the pairs to score it on, at its scale."""
    predictor = Predictor([loaded], device=device)
    resize_masks = resizes_masks(model.run)
    return predictor, EvaluationDataset(
        pairs, predictor, full_size=False, resize_masks=resize_masks
    )


def render_evaluation(
    title: str,
    facts: Sequence[tuple[str, str]],
    evaluation: Evaluation,
    predictor: Predictor,
    dataset: EvaluationDataset,
) -> str:
    """Return the page about an evaluation alone."""
    pictures = make_gallery(evaluation, predictor, dataset)
    page = Page(
        title=title, facts=facts, evaluation=evaluation, pictures=pictures, notes=predictor.notes
    )
    return render(page)


def _facts(
    model: SavedModel | None, evaluation: Evaluation | None, epochs: int
) -> list[tuple[str, str]]:
    """Return the entries at the head of the page."""
    facts = []
    best = model.run.get("best") if model else None  # its "score", and its "epoch" from 0
    if best is not None:
        epoch = f"epoch {best['epoch'] + 1}"
        if epochs:
            epoch += f" of {epochs}"
        score = best["score"] if best["score"] >= 0 else math.nan
        facts.append((f"validation {best['name']}", f"{show(score)} ({epoch})"))
    if evaluation is not None:
        facts += headline(evaluation)[evaluation.tally is None :]
    if model is not None:
        facts.append(("network", str(model.architecture)))
    return facts


def write_samples(
    folder: Path, pairs: Pairs, device: torch.device, network: str | None = None
) -> list[str]:
    """Write samples.png, the best network's masks of a few pairs, and return lines about them.

    Without a best network or pairs there are none.
    """
    best, path = folder / "best.pt", folder / "samples.png"
    if not best.is_file() or not pairs:
        return []
    model = read_model(best)
    if "best" not in model.run:  # nor is it to be scored as the run's
        raise UserError(f"{best}: is not the best.pt of a run")
    loaded = build_model(model, best, device, bfloat16=is_faster_in_bfloat16(), network=network)
    predictor, dataset = _open(loaded, model, pairs, device)
    samples = []
    step = max(1, len(pairs) // _SAMPLES)
    for k in range(0, len(pairs), step)[:_SAMPLES]:
        sample = dataset.read(k)
        image = sample.image[0].numpy()  # (h, w, C)
        prediction = predictor.predict_batch([image], [image.shape[:2]])[0]
        shown = [predictor.labels.layer(mask) for mask in (sample.mask[0].numpy(), prediction.mask)]
        samples.append((image, shown[0], shown[1]))
    with write_errors(path), replacing(path, durable=True) as temporary:
        draw_samples(samples, predictor.labels, temporary)
    found = model.run["best"]
    what = f"validation {found['name']} {found['score']:.4f}"
    if found["score"] < 0:
        what = "the last: the validation images have nothing to score"
    return [
        f"best: epoch {found['epoch'] + 1}, {what}; {best}",
        *predictor.labels.describe_tuning(),
        f"samples: {path} (image, truth, prediction)",
    ]


def write_reports(
    config: TrainConfig, data: PreparedData, world: World, log: Callable[[str], None]
) -> None:
    """Write samples.png and report.html into the run's folder; log where they are.

    The run is saved and has ended well: whatever fails here is a warning.
    """
    folder, network, pairs = config.folder, config.network.model, data.split.validation
    try:
        for line in world.on_main(lambda: write_samples(folder, pairs, world.device, network)):
            log(line)
        page = write_report(
            folder,
            pairs,
            world,
            rare=data.rare,
            log=log,
            workers=config.launch.workers,
            network=network,
        )
        log(f"report: {page}")
    except Exception as error:  # what rank 0 raises comes on every rank
        if world.is_main and not isinstance(error, _OUTSIDE):
            traceback.print_exc()
        run = quote(str(folder))
        log(f"warning: no report: {error}; write it later with python -m unet_ddp report {run}")


def draw_samples(samples: list[tuple[Pixels, Ids, Ids]], labels: Labels, path: Path) -> None:
    """Write a picture with a row per sample: image, truth and prediction."""
    rows = []
    for image, *masks in samples:
        drawn = [draw_mask(image, ids, labels) for ids in masks]
        rows.append(_join([to_rgb(image), *drawn], axis=2))
    save_picture(_join(rows, axis=1), path)


def _join(pictures: list[Tensor], axis: int) -> Tensor:
    """Return pictures (3, H, W) joined in a row (axis 2) or a column (axis 1), on white."""
    height = max(picture.shape[1] for picture in pictures)
    width = max(picture.shape[2] for picture in pictures)
    padded = []
    for picture in pictures:
        below, right = height - picture.shape[1], width - picture.shape[2]
        if axis == 1:
            below = _GAP
        else:
            right = _GAP
        padded.append(F.pad(picture, (0, right, 0, below), value=255))
    joined = torch.cat(padded, axis)
    return joined.narrow(axis, 0, joined.shape[axis] - _GAP)
