"""A folder to give to others: weights, their description, and a model card as the Hugging Face Hub reads it."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from unet_ddp import __version__
from unet_ddp.checkpoints.described import describe, write_described
from unet_ddp.checkpoints.weights import SavedModel, find_model, read_model
from unet_ddp.data.labels import Labels
from unet_ddp.errors import UserError, one_line
from unet_ddp.extras.sharing.facts import Facts, find_facts
from unet_ddp.files import check_no_input, replacing, write_errors, write_text
from unet_ddp.prediction.backends import build_model, check_described

WEIGHTS = "model.safetensors"
_FILES = (WEIGHTS, "config.json", "README.md")
_TEMPLATE = Path(__file__).with_name("card.md.jinja")
_ADVICE = "make room, or use another --card"
_WEAK = 0.5  # Dice below which the card names a class
_METRICS = {  # names and titles on the Hub
    "mean AP": ("mean_average_precision", "Mean AP"),
    "Dice": ("dice", "Mean Dice"),
    "IoU": ("mean_iou", "Mean IoU"),
}
_OF_TWO = {"Dice": ("dice", "Dice of {}"), "IoU": ("iou", "IoU of {}")}  # the second class's


def read_checked(
    checkpoint: str, scale: float | None, network: str | None
) -> tuple[SavedModel, Path, list[str]]:
    """Return the network of a checkpoint, which can be built, its file, and lines about it."""
    source = find_model(checkpoint)
    saved = read_model(source, scale)
    built = build_model(saved, source, torch.device("cpu"), fold=False, network=network)
    return saved, source, built.notes


def write_card(
    saved: SavedModel, source: Path, folder: Path, *, licence: str, overwrite: bool
) -> list[str]:
    """Write the folder of a network that was read from `source`, and return lines to print.

    Raises:
        UserError: a file is there already, or can't be written.
    """
    labels = check_described(saved, source)[1]
    taken = [folder / name for name in _FILES if (folder / name).exists()]
    if taken and not overwrite:
        raise UserError(f"{taken[0]}: already exists; use --overwrite, or another --card")
    check_no_input([("--card", path) for path in taken], [("checkpoint", source)])
    if foreign := [
        path for path in taken[-2:] if path.suffix != ".safetensors" and not _is_ours(path)
    ]:
        raise UserError(f"{foreign[0]}: is of another program; use another --card")
    facts = find_facts(saved, source, labels)
    card = make_card(saved, facts, folder.resolve().name, licence, WEIGHTS)
    with write_errors(folder, _ADVICE):
        with replacing(folder / WEIGHTS) as temporary:
            write_described(saved, temporary)
        write_text(folder / "config.json", json.dumps(describe(saved), indent=2) + "\n")
        write_text(folder / "README.md", card)
    lines = [
        f"{folder}: {', '.join(_FILES)}",
        f"  use it with: predict.py --model {quote(str(folder / WEIGHTS))}",
    ]
    if not facts.scores:
        advice = "; export best.pt" if source.with_name("best.pt").is_file() else ""
        lines.append(f"  the card has no scores: this checkpoint does not say them{advice}")
    if licence == "unknown":
        lines.append("  the card's licence is unknown: nobody may use it; name one by --license")
    return lines


def _is_ours(path: Path) -> bool:
    """Return whether a model card, or a description, was written by this program."""
    with write_errors(path, _ADVICE):
        text = path.read_text(encoding="utf-8", errors="replace")
    return "library_name: unet_ddp" in text or '"preprocessing"' in text


def make_card(saved: SavedModel, facts: Facts, name: str, licence: str, weights: str) -> str:
    """Return the text of README.md, for the network in the file `weights`."""
    from huggingface_hub import ModelCard, ModelCardData

    assert saved.labels and saved.preprocessing
    results = _to_results(facts, saved.labels)
    about: dict[str, Any] = {
        "license": licence,
        "library_name": "unet_ddp",
        "pipeline_tag": "image-segmentation",
        "tags": ["image-segmentation", "semantic-segmentation", "u-net", "pytorch"],
    }
    if results:
        about |= {"model_name": one_line(name), "eval_results": results}
    card = ModelCard.from_template(
        ModelCardData(**about),
        template_path=str(_TEMPLATE),
        name=one_line(name),
        show=one_line,
        architecture=str(saved.architecture),
        labels=saved.labels,
        pixels=saved.preprocessing,
        threshold=saved.threshold,
        facts=facts,
        weak=[one_line(each) for each, dice, _ in facts.classes if dice < _WEAK],
        licence=licence,
        version=__version__,
        weights=weights,
    )
    return f"{card}\n"


def _to_results(facts: Facts, labels: Labels) -> list[Any]:
    """Return the scores as the Hub lists them: there, a mean IoU is over all classes."""
    from huggingface_hub import EvalResult

    metrics, foreground = _METRICS, one_line(labels.class_names[1])
    if labels.is_binary:
        metrics = {key: (kind, title.format(foreground)) for key, (kind, title) in _OF_TWO.items()}
    return [
        EvalResult(
            task_type="image-segmentation",
            dataset_type="image-folder",
            dataset_name="validation images of the run",
            metric_type=kind,
            metric_name=title,
            metric_value=round(facts.scores[name], 4),
        )
        for name, (kind, title) in metrics.items()
        if name in facts.scores
    ]
