"""The networks of a job of predictions, loaded as its settings say."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path

from unet_ddp.checkpoints.weights import list_runs
from unet_ddp.distributed.device import predicts_in_bfloat16
from unet_ddp.distributed.world import World
from unet_ddp.errors import print_lines
from unet_ddp.prediction.changed_code import ChangedCode
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.scale_warning import watch_scale


def load_predictor(config: PredictConfig, paths: Sequence[Path], world: World) -> Predictor:
    """Load the networks and print what they are."""
    is_fast = all(world.gather(predicts_in_bfloat16(config.precision)))  # on every host
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChangedCode)  # a note says it
        predictor = Predictor.from_checkpoint(
            *paths,
            device=world.device,
            scale=config.scale,
            precision="auto" if is_fast else "float32",
            tile=config.tile,
            overlap=config.overlap,
            tta=config.tta,
            threshold=config.threshold,
            ground_resolution=config.ground_resolution,
            network=config.network,
            runtime=config.runtime,
        )
    watch_scale(predictor)
    if world.is_main:
        line = f"model: {', '.join(map(str, paths))}"
        count = 0 if config.model else len(list_runs())
        if count > 1:
            line += f" (the newest of {count} runs; --model takes another)"
        print_lines(line, *map(indent, predictor.notes))
        if predictor.format.ground_resolution is not None:
            print(f"  maps: at {predictor.format.ground_resolution:g} m on the ground")
        if predictor.threshold is not None:
            name = predictor.labels.class_names[1]
            limit = f"{predictor.threshold:g} or more"
            if config.threshold is None and len(paths) > 1:
                limit += ", the mean of the checkpoints'"
            print_lines(f"  threshold: {name} where its probability is {limit}")
    return predictor


def indent(note: str) -> str:
    """Return a line about a network as it is printed below its name; a warning begins its line."""
    return note if note.startswith("warning: ") else f"  {note}"


def mark_masks(predictor: Predictor, threshold: float | None = None) -> str:
    """Return the mark of masks: digests of the weights and classes, then the settings that change a mask.

    The `threshold` is the predictor's by default. The mark is empty if the weights of a network are not known.
    """
    labels, pixels, tiling = predictor.labels, predictor.preprocessing, predictor.tiling
    digests = sorted(model.digest for model in predictor.models)
    least = threshold or predictor.threshold or 0.5
    ground = pixels.ground_resolution
    settings = {
        "threshold": labels.is_binary and f"{least:g}",
        "tta": predictor.tta,
        "tile": tiling.window,
        "overlap": f"{100 * tiling.overlap:g}",
        "scale": f"{pixels.scale:g}",
        "resolution": ground and f"{ground:g}",
        "tuning": "".join(_digest(line)[:8] for line in labels.describe_tuning()),
    }
    classes = _digest((labels.kind, labels.rgb, labels.values))
    words = [f"{name}={value}" for name, value in settings.items() if value]
    mark = " ".join([f"{_digest(digests)[:16]}.{classes[:8]}", *words])
    return mark if all(digests) else ""


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()
