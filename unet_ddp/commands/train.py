"""Train a U-Net on a folder of images and a folder of masks.

    torchrun --nproc_per_node=4 train.py --images DIR --masks DIR
    torchrun --nproc_per_node=4 train.py --resume

All processes run this program. `world.on_main(work)` runs `work` on rank 0 and returns its result on
every rank; the run's folder (its files: runs/folder.py) and tracker write and print on rank 0 alone.

Where parts that not all runs need enter this one (plugins.py has them all), in the order of `train`:

    find_mirror             the copy of a run at s3://, gs://, az://
    folder.open             weights of --load
    resumed.prepare_data    packs and addresses, formats of images, --instances, --palette, --balance
    choose_model            networks and losses, own ones too
    run_planners            --budget, --batch-size auto, --lr auto
    builder.build           --compile, --cache, reading from addresses
    Tracker                 --wandb, --writer, --profile
    find_tuner              how objects are told apart
    write_reports           report.html, samples.png
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from unet_ddp.cli import parse_train
from unet_ddp.cli.recipes import check_own_code, naming_recipe
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import Loaders
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.distributed.launch import parse_program, run_on_all_ranks
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.metrics.scores import Validation
from unet_ddp.plugins import find
from unet_ddp.runs.build import (
    build_metadata,
    choose_model,
    describe_run,
    find_tuner,
)
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.mirror import find_mirror
from unet_ddp.runs.plan import RunBuilder, last_step, run_planners
from unet_ddp.runs.tracking import Tracker, console
from unet_ddp.training.determinism import allow_tf32, cudnn_autotuning, deterministic
from unet_ddp.training.guard import explain_out_of_memory
from unet_ddp.training.prefetch import Prefetcher
from unet_ddp.training.state import TrainState
from unet_ddp.training.step import train_steps
from unet_ddp.training.validation import count_pixels


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, and train on every process; --nproc N starts N of them here."""
    config = parse_program(parse_train, argv, "train")
    launch = config.launch
    run_on_all_ranks(
        train, config, nproc=launch.nproc, device=launch.device, timeout=launch.timeout
    )


def train(config: TrainConfig, world: World) -> int:
    """Train from the first step, or from where the run stopped; return the exit status."""
    began, log = time.monotonic() - time.process_time(), console(world)  # with the imports
    determinism = deterministic(log) if config.launch.deterministic else nullcontext()
    recipe = naming_recipe(config.launch.config, config.recipe)
    allow_tf32()
    with recipe, determinism, RunFolder(config, world, log, find_mirror(config, log)) as folder:
        if world.size > 1:
            find("extras", "check_hosts")(config, folder.launchers, world)
        resumed = world.on_main(lambda: folder.open(config))  # of a new run, too
        config = resumed.resolve_settings(config, world)
        check_own_code(config.to_dict(), config.given - config.recipe)
        use_own_readers(config.data.reader)
        data = world.on_main(lambda: resumed.prepare_data(config))
        spec = choose_model(config, data, resumed, world)
        builder = RunBuilder(spec, data, resumed, world, began)
        config = run_planners(config, builder)
        state, loaders = builder.build(config)
        tracker = Tracker(config, data, state, loaders, world)  # logs in where --wandb needs it
        # Only now, as nothing can be wrong any more: --overwrite deletes, config.yaml is written.
        metadata = partial(build_metadata, config, spec, data, loaders, world)  # read by one rank
        world.on_main(lambda: folder.claim(config, data, resumed, metadata()))
        tracker.log(resumed.notes, data.notes, loaders.notes, spec.notes)
        tracker.log(describe_run(config, spec, state, loaders, world))
        folder.begin(state, resumed, world)  # no thread may write when processes are forked
        tuner = find_tuner(config, data, world)
        with loaders, tracker, StopSignal(world) as stop:
            while not state.is_over and not stop.reason:
                with explain_out_of_memory(config, world, "training"), cudnn_autotuning():
                    train_one_epoch(config, state, loaders, folder, tracker, stop)
                with explain_out_of_memory(config, world, "validation"):
                    validation = validate(state, loaders, folder, data, stop, world)
                    labels = tune(tuner, state, validation, stop)
                end_epoch(config, state, validation, labels, folder, tracker, stop)
            world.on_main(folder.wait)  # no rank leaves before the file is on the disk
        stop.raise_error()
        world.on_main(lambda: folder.finish(state, stop.reason))  # again, if a save has failed
        if stop.reason is None and resumed.has_report(state):  # all epochs are done
            find("extras", "write_reports")(config, data.split.validation, world, log)
    return stop.reason.exit_status if stop.reason else 0


def train_one_epoch(
    config: TrainConfig,
    state: TrainState,
    loaders: Loaders,
    folder: RunFolder,
    tracker: Tracker,
    stop: StopSignal,
) -> None:
    """Take the steps of the rest of an epoch, until its end or until all ranks stop."""
    options = config.optimization
    tracker.follow(folder, stop)
    tracker.begin_epoch(state)
    loaders.sampler.start_at(state.epoch, state.step)
    # Two steps ahead: an unreadable file on one rank is known to all before the step that needs it.
    batches = Prefetcher(
        loaders.training,
        ahead=2 * options.accumulate,
        device=state.precision.device,
        on_error=stop.request_stop,
    )
    batches.fill()
    if stop.poll_now():  # waits for the other ranks; `poll` below learns it a step later
        return
    for report in train_steps(
        state,
        batches,
        until=last_step(config.launch, state.steps_per_epoch),  # steps of the whole run
        accumulate=options.accumulate,
        clip=options.clip,
    ):
        tracker.step(report, state.done, waited=batches.waited)  # ends a run of nan
        batches.fill()
        if stop.poll():
            return
        if folder.is_due(state.done):
            folder.save(state)
    tracker.end_steps()
    if not stop.poll_now() and state.step < state.steps_per_epoch:
        stop.check_limit(state.done, last_step(config.launch, state.steps_per_epoch))


def validate(
    state: TrainState,
    loaders: Loaders,
    folder: RunFolder,
    data: PreparedData,
    stop: StopSignal,
    world: World,
) -> Validation | None:
    """Return the scores over all validation images, the same on every rank; None without images."""
    validation_images = loaders.validation
    if stop.reason or validation_images is None:
        return None
    # No thread may write at a fork. The others wait without --timeout: storage may be slow.
    world.on_main(lambda: folder.wait() if validation_images.forks else None)
    images = stop.until_stopped(validation_images)
    counts = count_pixels(state, images, num_classes=data.labels.num_classes)
    validation = Validation.from_counts(counts.over_ranks())
    stop.poll_now()  # a validation that was stopped does not count: --resume repeats it
    return validation


def tune(
    tuner: Any, state: TrainState, validation: Validation | None, stop: StopSignal
) -> Labels | None:
    """Return the labels that suit the best network so far; None if nothing is to be chosen."""
    is_best = validation is not None and validation.scores.dice > state.best
    if stop.reason or not is_best or tuner is None:
        return None
    labels: Labels = tuner.tune(state, watch=stop.until_stopped)
    stop.poll_now()  # as in `validate`
    return labels


def end_epoch(
    config: TrainConfig,
    state: TrainState,
    validation: Validation | None,
    labels: Labels | None,
    folder: RunFolder,
    tracker: Tracker,
    stop: StopSignal,
) -> None:
    """Log and save the epoch; if the ranks have stopped in it, save where --resume continues."""
    if stop.reason:
        folder.save(state)
        return
    tracker.log_epoch(state, validation)
    is_best = state.finish_epoch(validation)
    tracker.log_annealing(state)
    folder.save(state, is_best=is_best, labels=labels)
    if not state.is_over:
        stop.check_limit(state.done, last_step(config.launch, state.steps_per_epoch))
