"""Predict the masks of images with a trained network, or several.

    python predict.py image.jpg [more.jpg folder/ ...]
    torchrun --nproc_per_node=4 predict.py folder/ --output masks/ --rle submission.csv
    python predict.py scene.tif --nproc 4

A job finds its images, loads the networks, predicts and writes, and at the end merges what is one
file for all images. Of several processes each takes its share of the images, and of a large scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from threading import RLock
from typing import NoReturn

from tqdm import tqdm

from unet_ddp.checkpoints.weights import find_model
from unet_ddp.data.readers.base import Scene
from unet_ddp.data.readers.read import find_readers, use_own_readers
from unet_ddp.distributed.launch import parse_program, run_on_all_ranks
from unet_ddp.distributed.world import World
from unet_ddp.files import exit_on_signals
from unet_ddp.prediction.config import PredictConfig, parse_predict
from unet_ddp.prediction.load import load_predictor, mark_masks
from unet_ddp.prediction.outputs.base import open_outputs
from unet_ddp.prediction.outputs.records import Records
from unet_ddp.prediction.paths import find_images, name_outputs
from unet_ddp.prediction.pipeline import Job, begin, process_images
from unet_ddp.prediction.summary import print_outcomes, print_summary

PATIENCE = 86400.0  # seconds that a process waits at the end for those still predicting


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; exit with 0, 1 if some of several images failed, 2 after a mistake."""
    config = parse_program(parse_predict, argv, "predict")
    with exit_on_signals(config.advice_if_stopped):
        run_on_all_ranks(
            predict, config, nproc=config.nproc, device=config.device, timeout=PATIENCE
        )


def predict(config: PredictConfig, world: World) -> int:
    """Predict the images of a job and return the exit status."""
    use_own_readers(config.reader)
    tqdm.set_lock(RLock())  # its own is a semaphore, which a process ended by a signal would leave
    images = world.on_main(lambda: find_images(config.inputs))
    models = [find_model(name) for name in config.model or [None]]
    predictor = load_predictor(config, models, world)
    outputs = open_outputs(config, predictor.labels, predictor.format)
    files = world.on_main(
        lambda: name_outputs(
            images,
            config,
            predictor.labels,
            outputs,
            models=models,
            ground_resolution=predictor.format.ground_resolution,
            mark=mark_masks(predictor),
        )
    )
    with ExitStack() as stack:
        # Those that --nproc started hear them, too.
        stack.enter_context(exit_on_signals(config.advice_if_stopped))
        lists = [each for each in outputs if each.path is not None]
        replaces = config.overwrite
        records = [stack.enter_context(closing(Records(each, replaces=replaces))) for each in lists]
        job = begin(Job(config, world, files, predictor, outputs, records))
        process = process_images
        if any(issubclass(reader, Scene) for reader in find_readers(images)):
            from unet_ddp.extras.scenes.process import process_scenes as process
        tallies = world.gather(print_outcomes(job, process(job)))
        for each in records:
            each.merge(world)
        world.on_main(lambda: print_summary(job, tallies))
    return int(any(each.failed for each in tallies))
