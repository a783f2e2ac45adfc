"""Train a U-Net on a folder of images and a folder of masks.

    torchrun --nproc_per_node=4 train.py --images DIR --masks DIR
    torchrun --nproc_per_node=4 train.py --resume

All processes run this program. `world.on_main(work)` runs `work` on rank 0 and returns its result on
every rank; the run's folder (its files: runs/folder.py) and tracker write and print on rank 0 alone.

Where parts that not all runs need enter this one, in the order of `train`. Those with a star are handed in by this
file, parts.py and train_parts.py. The others are found by name: a setting has `Calls(POINT)` or `Names(POINT)` beside
its field in config/, and plugins/built_in/of_*.py has the table of that point.

    find_same_bits*         --deterministic
    RunFolder               the copy of a run at s3://, gs://, az:// (extras/cloud/storage.py)
    open_run*               weights of --load and --encoder-weights (extras/transfer/)
    start.prepare_data      where pairs are: folders, lists, addresses (data/pair_kinds.py, data/remote_pairs.py), packs
                            (extras/packs/), --window (extras/windows/), polygons (extras/polygons/), a data set of the
                            user's own (extras/arrays/); formats of images (data/readers/; maps: extras/geo/reader.py);
                            --balance*, --scale-jitter*, --validation-images*, --shares*; kinds of labels:
                            --instances (extras/objects/), --palette (extras/palettes/), --overlap* (extras/overlap/)
    suit_run*               ImageNet weights where few images suit them and no network is named (extras/transfer/)
    choose_model            networks (network/) and losses (training/losses.py), own ones too (training/own_loss.py);
                            --encoder-weights*; what the kind of labels asks of them (heads.py)
    check_hosts*            several processes: their settings, files and sources are compared
    run_planners            --budget, which plans epochs and ends nothing, --batch-size auto, --lr auto (extras/planners/)
    builder.build           --compile*, --cache*, reading from addresses (extras/cloud/reading.py)
    Tracker                 --wandb, --callback, --profile
    Head.tuner              how predictions are decoded (extras/objects/tuning.py, extras/overlap/tuning.py)
    write_reports*          report.html, samples.png
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from unet_ddp.cli import parse_train
from unet_ddp.cli.recipes import check_own_code, naming_recipe
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.commands.train_parts import (
    choose_parts,
    find_same_bits,
    keep_settings,
    open_run,
    suit_run,
)
from unet_ddp.config import TrainConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import Loaders
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.distributed.device import cudnn_autotuning, tf32_products
from unet_ddp.distributed.launch import parse_program, run_on_all_ranks
from unet_ddp.distributed.out_of_memory import explain_out_of_memory
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.heads import Tuner, find_head
from unet_ddp.metrics.scores import Validation
from unet_ddp.runs.build import build_metadata, choose_model, describe_run
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.plan import RunBuilder, run_planners
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.tracking import Tracker, console
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


@dataclass(frozen=True)
class Run:
    """A run that trains, on one rank."""

    config: TrainConfig
    data: PreparedData
    start: StartPoint
    state: TrainState
    loaders: Loaders
    folder: RunFolder
    tracker: Tracker
    stop: StopSignal
    world: World
    tuner: Tuner | None
    limit: int | None
    """Steps at which --stop-after stops it; None for the end of its epochs."""


def train(config: TrainConfig, world: World, *, began: float | None = None) -> int:
    """Train from the first step, or from where the run stopped; return the exit status.

    `began` is the time.monotonic() from which --budget counts (default: the start of this process, with the
    imports).
    """
    began, log = began or time.monotonic() - time.process_time(), console(world)
    with (
        tf32_products(),
        naming_recipe(config.launch.config, config.recipe),
        find_same_bits(config, log),
        RunFolder(config, world, log) as folder,
    ):
        run = prepare(config, folder, world, began)
        state, stop = run.state, run.stop
        with run.tracker as tracker:
            with run.loaders, tracker.bar, stop:
                while not state.is_over and not stop.reason:
                    with explain_out_of_memory(run.config, world, "training"), cudnn_autotuning():
                        train_one_epoch(run)
                    with explain_out_of_memory(run.config, world, "validation"):
                        validation, labels = validate(run)
                    end_epoch(run, validation, labels)
                world.on_main(folder.wait)  # no rank leaves before the file is on the disk
            stop.raise_error()
            world.on_main(lambda: folder.finish(state, stop.reason))  # again, if a save has failed
        if stop.reason is None and run.start.has_report(state):  # all epochs are done
            from unet_ddp.extras.report.write import write_reports

            write_reports(run.config, run.data, world, log)
    return stop.reason.exit_status if stop.reason else 0


def prepare(config: TrainConfig, folder: RunFolder, world: World, began: float) -> Run:
    """Return the run, whose folder and first checkpoint are written; it `began` at that time.monotonic()."""
    if world.size > 1:
        from unet_ddp.extras.hosts.compare import check_data, check_hosts

        check_hosts(config, folder.launchers, world)
    start = world.on_main(lambda: open_run(folder, config))  # of a new run, too
    config = start.resolve_settings(config, world)
    check_own_code(config.to_dict(), config.given - config.recipe)
    use_own_readers(config.data.reader)
    data = world.on_main(lambda: start.prepare_data(config, DATA_PARTS))
    config, start = suit_run(config, data, start, world)
    parts = choose_parts(config)
    spec = choose_model(config, data, start, world.device, parts=parts)
    if world.size > 1:
        check_data(data.split, spec.sources, world)
    builder = RunBuilder(spec, data, start, world, began, parts)
    config = run_planners(config, builder)
    state, loaders = builder.build(config)
    about = describe_run(config, spec, state, loaders, world)
    config = keep_settings(config, state, start)
    stop = StopSignal(world)
    tracker = Tracker(  # logs in to W&B
        config, data, state, loaders, world, stop, parts.log_uncompiled, start
    )
    folder.on_saved = tracker.saved
    # Only now, as nothing can be wrong any more: what --overwrite replaces is moved aside.
    metadata = partial(build_metadata, config, spec, data, loaders, world)  # read by one rank
    world.on_main(lambda: folder.claim(config, start, tracker.describe(metadata())))
    tracker.log(start.notes, data.notes, loaders.notes, spec.notes, about)
    with stop:  # from the first save on, a signal is one to continue after
        world.on_main(lambda: folder.begin(data, state, start))  # no thread may write at a fork
        tuner = find_head(data.labels).tuner(data, world, resize_masks=config.data.resize_masks)
    limit = config.launch.last_step(state.steps_per_epoch)
    return Run(config, data, start, state, loaders, folder, tracker, stop, world, tuner, limit)


def train_one_epoch(run: Run) -> None:
    """Take the steps of the rest of an epoch, until its end or until all ranks stop."""
    state, tracker, stop, options = run.state, run.tracker, run.stop, run.config.optimization
    tracker.begin_epoch(state)
    # Two steps ahead: an unreadable file on one rank is known to all before the step that needs it.
    batches = Prefetcher(
        run.loaders.training.of_epoch(state.epoch, state.step),
        ahead=2 * options.accumulate,
        device=state.precision.device,
        on_error=stop.request_stop,
    )
    batches.fill()
    if stop.poll_now():  # waits for the other ranks; `poll` below learns it a step later
        return
    for report in train_steps(
        state, batches, until=run.limit, accumulate=options.accumulate, clip=options.clip
    ):
        tracker.step(report, state.done, waited=batches.waited)  # ends a run of nan
        batches.fill()
        if stop.poll():
            return
        if run.folder.is_due(state.done):
            run.folder.save(state)
    tracker.end_steps()
    if not stop.poll_now() and state.step < state.steps_per_epoch:
        stop.check_limit(state.done, run.limit)


def validate(run: Run) -> tuple[Validation | None, Labels | None]:
    """Return the scores over all validation images, the same on every rank, and labels that suit the best.

    None stands for no images, and for labels that stay as they are.
    """
    state, stop, images = run.state, run.stop, run.loaders.validation
    if stop.reason or images is None:
        return None, None
    # No thread may write at a fork. The others wait without --timeout: storage may be slow.
    run.world.on_main(lambda: run.folder.wait() if images.forks else None)
    labels, batches = run.data.labels, stop.until_stopped(images)
    kind = find_head(labels).counts
    counts = count_pixels(state, batches, num_classes=labels.num_classes, kind=kind).over_ranks()
    validation = Validation.from_counts(counts)
    tuned = None
    # A validation that was stopped does not count: --resume repeats it.
    if not stop.poll_now() and run.tuner is not None:
        tuned, score, name = run.tuner.tune(state, counts, watch=stop.until_stopped)
        validation = replace(validation, score=score, score_name=name)
        stop.poll_now()
    return validation, tuned


def end_epoch(run: Run, validation: Validation | None, labels: Labels | None) -> None:
    """Log and save the epoch; if the ranks have stopped in it, save where --resume continues."""
    state, folder, tracker = run.state, run.folder, run.tracker
    if run.stop.reason:
        folder.stop(state, run.stop.reason)
        return
    tracker.log_epoch(state, validation)
    is_best = state.finish_epoch(validation)
    tracker.end_epoch(state)
    folder.save(state, is_best=is_best, labels=labels)
    if not state.is_over:
        run.stop.check_limit(state.done, run.limit)
