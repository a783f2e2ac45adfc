"""Train a U-Net on a folder of images and a folder of masks.

    torchrun --nproc_per_node=4 train.py --images DIR --masks DIR
    torchrun --nproc_per_node=4 train.py --resume

The story of a run: open its folder, prepare the data, build the network, then epochs of
learning, scoring, recording and keeping. All processes go through it alike; what the main
one does alone is inside `world.on_main`, or with the tracker, which is silent elsewhere.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unet_ddp import __version__
from unet_ddp.config import TrainConfig, parse_train, save_settings, settings
from unet_ddp.data.checks.check import PreparedData, check_classes
from unet_ddp.data.checks.check import prepare_data as prepare
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import Loaders, Prefetcher, SampleLoader, build_loaders, count_workers
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.data.splits import write_split
from unet_ddp.distributed.launch import exit_with_error, run_on_all_ranks
from unet_ddp.distributed.stop_signal import TROUBLE, StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.evaluation.report.write import write_report, write_samples
from unet_ddp.metrics.scores import Validation
from unet_ddp.network.architecture import Architecture, build_network, choose_architecture
from unet_ddp.network.compiled import compile_network
from unet_ddp.network.precision import Precision
from unet_ddp.network.sync_batchnorm import synchronise_batchnorm
from unet_ddp.runs import checkpoint
from unet_ddp.runs.folder import RunFolder, launch_name
from unet_ddp.runs.resume import Begun, fit_batch, keep_global_batch, open_run, split_fingerprint
from unet_ddp.runs.tracking import Tracker, console, score_columns, show_files, start_tracker
from unet_ddp.runs.weights import load_weights
from unet_ddp.training.batch_size import Trial, explain_out_of_memory
from unet_ddp.training.determinism import allow_fast, autotuning, deterministic
from unet_ddp.training.guard import FiniteGuard
from unet_ddp.training.losses import DiceCrossEntropy
from unet_ddp.training.optimizer import AdamW
from unet_ddp.training.step import Schedule, TrainState, evaluate, moving_average, train_epoch


def main(argv: Sequence[str] | None = None) -> None:
    """The command line, then the story on every process."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        launch = parse_train(words).launch
        if launch.nproc > 1 and "LOCAL_RANK" in os.environ:
            raise UserError("--nproc under torchrun: it starts the processes; leave --nproc out")
    except UserError as mistake:
        exit_with_error(mistake)
    run_on_all_ranks(train, words, nproc=launch.nproc, device=launch.device, timeout=launch.timeout)


@dataclass(frozen=True)
class Run:
    """All that a run consists of, on one process."""

    config: TrainConfig
    world: World
    folder: RunFolder
    data: PreparedData
    model: Model
    loaders: Loaders
    schedule: Schedule
    tracker: Tracker
    guard: FiniteGuard

    @property
    def training(self) -> SampleLoader:
        return self.loaders.training

    @property
    def sampler(self) -> TrainingSampler:
        return self.loaders.sampler

    @property
    def validation(self) -> SampleLoader | None:
        return self.loaders.validation

    @property
    def steps(self) -> int:
        """Steps of the optimizer in an epoch."""
        return self.sampler.steps

    @property
    def done(self) -> int:
        """Steps of the optimizer done so far."""
        return self.model.state.epoch * self.steps + self.model.state.step

    @property
    def is_over(self) -> bool:
        """Whether all epochs are done."""
        return self.model.state.epoch >= self.config.optimization.epochs

    def close(self) -> None:
        """End the reading processes."""
        self.loaders.__exit__(None, None, None)

    @property
    def last_step(self) -> int:
        """Where this start ends."""
        return min(self.config.launch.max_steps or self.schedule.steps, self.schedule.steps)


def train(words: list[str], world: World) -> int:
    """A run, from its first step or from where it stopped, to its end, --max-steps or a signal."""
    config = parse_train(words)
    bits = deterministic(console(world.is_main)) if config.launch.deterministic else nullcontext()
    with bits, RunFolder(config.folder, writes=world.is_main) as folder:
        begun = world.on_main(lambda: open_run(config, folder))
        run = begin(words, world, folder, begun)
        try:
            with StopSignal(world) as preemption:
                number = learn_and_score(run, preemption)
        except UserError:  # of other errors none: a reading process that hangs would be waited for
            run.close()
            raise
        run.close()
        run.tracker.close()
        world.on_main(lambda: finish(run, number))
        if run.is_over:
            show(run)
    return 128 + number if number else 0


def learn_and_score(run: Run, preemption: StopSignal) -> int:
    """Epoch after epoch; the signal that ended it, 0 for none."""
    state = run.model.state
    while state.epoch < run.config.optimization.epochs:
        with explain_out_of_memory(run.config, run.world, "training"), autotuning():
            number = learn(run, preemption)
        if number or state.step < run.steps:
            return keep(run, preemption, number)
        with explain_out_of_memory(run.config, run.world, "scoring"):
            validation = score(run, preemption)
        number = preemption.poll_now()
        if number:
            return keep(run, preemption, number)  # the steps are done; --resume scores them
        record(run, validation)
        is_best = state.finish_epoch(
            validation.scores.dice if validation else math.nan,
            validation.threshold if validation else None,
        )
        save(run, is_best=is_best)
        if run.done >= run.last_step:
            break
    run.world.on_main(lambda: settle(run))
    return 0


def keep(run: Run, preemption: StopSignal, number: int) -> int:
    """Save the run where it has stopped, and say why if that was a file that can't be read.

    No rank leaves before it is on the disk: a launcher would end the main one for it.
    """
    save(run)
    run.world.on_main(lambda: settle(run))
    if number == TROUBLE:
        preemption.raise_trouble()
    return number


def learn(run: Run, preemption: StopSignal) -> int:
    """The rest of an epoch; the signal that ended it, 0 for none."""
    state, options = run.model.state, run.config.optimization
    run.tracker.begin_epoch(state.epoch, options.epochs)
    run.sampler.start_at(state.epoch, state.step)
    # Two steps ahead: what one rank meets with is known to all after the step that follows.
    ahead = 2 * options.accumulate
    batches = Prefetcher(run.tracker.waiting(run.training), ahead, preemption.request_stop)
    batches.fill()
    number = preemption.poll_now()
    if number:
        return number
    saved = time.monotonic()
    for report in train_epoch(
        state,
        batches,
        run.model.loss,
        run.model.preprocessing,
        run.schedule,
        steps=run.steps,
        until=run.last_step - state.epoch * run.steps,
        accumulate=options.accumulate,
        clip=options.clip,
        seed=options.seed * run.world.size + run.world.rank,
    ):
        run.tracker.step(report)
        run.guard.look(report, run.done)
        batches.fill()
        number = preemption.poll()
        if number:
            return number
        if is_due(run, time.monotonic() - saved):
            save(run)
            saved = time.monotonic()
    return preemption.poll_now()


def is_due(run: Run, seconds: float) -> bool:
    """Whether last.pt is to be written in mid-epoch; each process may answer for itself."""
    steps, minutes = run.config.run.save_every_steps, run.config.run.save_every_minutes
    return bool(steps and run.done % steps == 0) or bool(minutes and seconds >= 60 * minutes)


# -- before the first step -----------------------------------------------------------------


def begin(words: list[str], world: World, folder: RunFolder, begun: Begun) -> Run:
    """Everything that a run needs; what its folder held before is deleted last."""
    config = parse_train(words, resumed=begun.content["config"] if begun.content else None)
    config = keep_global_batch(config, world, begun)
    data = world.on_main(lambda: prepare_data(config, world, begun))
    config = fit_batch(
        config, world, begun, trial(config, world, data, begun), len(data.split.training)
    )
    allow_fast()
    with explain_out_of_memory(config, world, "building"):
        model = build_model(config, world, data, begun)
    loaders = build_loaders(config, data, image_format=model.preprocessing.format, world=world)
    sampler = loaders.sampler
    options, state = config.optimization, model.state
    schedule = Schedule(options.learning_rate, options.epochs * sampler.steps, options.warmup / 100)
    world.on_main(lambda: claim_folder(config, folder, data, begun))
    tracker = start_tracker(
        config,
        is_main=world.is_main,
        device=world.device,
        steps=schedule.steps,
        done=state.epoch * sampler.steps + state.step,
        images_per_step=sampler.per_step * world.size,
    )
    about = describe(config, world, model, sampler.steps)
    for line in [*begun.notes, *data.notes, *loaders.notes, *model.notes, *about]:
        tracker.say(line)
    run = Run(
        config,
        world,
        folder,
        data,
        model,
        loaders,
        schedule,
        tracker,
        FiniteGuard(world, data.split.training, most=config.launch.max_bad_steps, say=tracker.say),
    )
    if begun.content is None:
        save(run)  # so that a kill in the first epoch finds a run to go on with
        settle(run)  # reading processes are forked next, which a thread that writes could disturb
    return run


def claim_folder(config: TrainConfig, folder: RunFolder, data: PreparedData, begun: Begun) -> None:
    """The run is sound, as far as can be known: the folder is its own from here on."""
    try:
        if begun.content is None:
            folder.clear()
        save_settings(config, folder.path / "config.yaml")
        write_split(data.split, data.groups, folder.path / "split.csv")
    except OSError as error:
        raise UserError(
            f"{folder.path}: {error.strerror or error}; make room, or choose another folder by "
            "--checkpoints"
        ) from None


def prepare_data(config: TrainConfig, world: World, begun: Begun) -> PreparedData:
    """The data set, found, checked, labelled and split; for a run that goes on, its own again."""
    labels = Labels.from_dict(begun.content["labels"]) if begun.content else None
    data = prepare(
        config.data,
        seed=config.optimization.seed,
        progress=show_files,
        workers=world.cores * world.local_size,
        labels=labels,
        skip_bad=config.launch.skip_bad_files,
    )
    check_classes(data.labels, config.optimization.class_weights)
    if begun.content is not None:
        check_same_data(data, begun.content)
    return data


def check_same_data(data: PreparedData, content: checkpoint.Content) -> None:
    """Refuse to go on with other images: their order, and so the position, would mean nothing."""
    pixels = Preprocessing.from_dict(content["preprocessing"])
    kind = (pixels.channels, pixels.dtype)
    names = split_fingerprint(data.split)
    if kind != (data.format.channels, data.format.dtype) or content["names"] != names:
        raise UserError(
            "--resume: the images or the split are not those that the run began with; give its own "
            "--images, --masks and --validation, or begin a new run from its weights by --load"
        )


@dataclass(frozen=True)
class Model:
    """The network and all that goes with it."""

    architecture: Architecture
    preprocessing: Preprocessing
    loss: DiceCrossEntropy
    state: TrainState
    notes: list[str]


def build_model(config: TrainConfig, world: World, data: PreparedData, begun: Begun) -> Model:
    """The network, with the weights it starts from, and what trains it."""
    options = config.optimization
    architecture, preprocessing, notes = choose(config, data, begun)
    precision = Precision(world.device, amp=options.amp, dtype=options.amp_dtype)
    torch.manual_seed(options.seed)  # the same first weights on every rank
    weights = None if begun.content or begun.weights else config.network.encoder_weights
    if weights is not None:  # fetched by one process, found in its cache by the others
        world.on_main(lambda: build_network(architecture, encoder_weights=weights) and None)
    network = build_network(
        architecture, encoder_weights=weights, checkpointing=config.network.checkpointing
    )
    if begun.weights is not None:
        load_weights(network, begun.weights.state, Path(str(config.run.load)))
    network = synchronise_batchnorm(network.to(world.device), world)
    example = torch.zeros(2, architecture.channels, *example_size(data), device=world.device)
    replica = world.replicate(network, example)
    state = TrainState(
        network,
        replica,
        AdamW(network.parameters(), weight_decay=options.weight_decay, fused=True),
        precision,
        moving_average(network, options.ema),
        compile_network(replica, world.device) if options.compile else None,
        sums=torch.zeros(3, dtype=torch.float64, device=world.device),
    )
    if begun.content is not None:
        state.load_state_dict(begun.content)
        for group in state.optimizer.param_groups:  # the learning rate is set at each step
            group["weight_decay"] = options.weight_decay
    return Model(architecture, preprocessing, new_loss(config, world), state, notes)


def new_loss(config: TrainConfig, world: World) -> DiceCrossEntropy:
    """What is made small."""
    options = config.optimization
    return DiceCrossEntropy(
        dice_weight=options.dice_weight,
        cross_entropy_weight=options.cross_entropy_weight,
        class_weights=options.class_weights,
    ).to(world.device)


def trial(config: TrainConfig, world: World, data: PreparedData, begun: Begun) -> Trial:
    """What tries, for --batch-size auto, how many images of a step fit into memory."""
    architecture, preprocessing, _ = choose(config, data, begun)
    return Trial(
        architecture,
        preprocessing,
        new_loss(config, world),
        Precision(world.device, amp=config.optimization.amp, dtype=config.optimization.amp_dtype),
        data.crop_size or data.smallest,
        checkpointing=config.network.checkpointing,
        average=config.optimization.ema > 0,
    )


def example_size(data: PreparedData) -> tuple[int, int]:
    """Sides for a trial of the network, as in training but neither tiny nor large."""
    sides = data.crop_size or data.smallest
    return max(64, min(sides[0], 256)), max(64, min(sides[1], 256))


def choose(
    config: TrainConfig, data: PreparedData, begun: Begun
) -> tuple[Architecture, Preprocessing, list[str]]:
    """Architecture and preprocessing: the checkpoint's, as far as it tells, else the flags'."""
    if begun.content is not None:
        return (
            Architecture.from_dict(begun.content["architecture"]),
            Preprocessing.from_dict(begun.content["preprocessing"]),
            [],
        )
    network, scale = config.network, config.data.scale
    architecture = choose_architecture(
        network.model,
        network.encoder,
        channels=data.format.channels,
        num_classes=data.labels.num_classes,
        width=network.width,
        bilinear=network.bilinear,
    )
    preprocessing = Preprocessing.for_data(data.format, data.range, scale=scale)
    if begun.weights is None or begun.weights.architecture is None:
        return architecture, preprocessing, []
    loaded = begun.weights.architecture
    architecture = replace(
        loaded, num_classes=architecture.num_classes, channels=architecture.channels
    )
    told = begun.weights.preprocessing
    kind = (preprocessing.channels, preprocessing.dtype)
    if told is not None and (told.channels, told.dtype) == kind:
        preprocessing = replace(told, scale=scale, nodata=preprocessing.nodata)
    return architecture, preprocessing, [f"network as in {config.run.load}"]


def describe(config: TrainConfig, world: World, model: Model, steps: int) -> list[str]:
    """The run in two lines."""
    options = config.optimization
    count = sum(p.numel() for p in model.state.network.parameters())
    dtype = str(model.state.precision.dtype).removeprefix("torch.")
    each = f", {options.accumulate} times" if options.accumulate > 1 else ""
    return [
        f"network: {model.architecture}; {count / 1e6:.1f} million parameters",
        f"run: {config.folder}; {options.epochs} epochs of {steps} steps of "
        f"{options.batch_size * options.accumulate * world.size} images ({options.batch_size} on each of {world.size} "
        f"process(es){each}), {world.device.type}, {dtype}, "
        f"{count_workers(world, config.launch.workers)} reading process(es) each",
    ]


# -- after each epoch ----------------------------------------------------------------------


def score(run: Run, preemption: StopSignal) -> Validation | None:
    """Scores over all validation images, the same on every rank; None where there are none."""
    if run.validation is None:
        return None
    settle(run)  # as before the first step
    state = run.model.state
    counts = evaluate(
        state.scored,
        preemption.until_stopped(run.validation),
        run.model.preprocessing,
        state.precision,
        num_classes=run.data.labels.num_classes,
    )
    return Validation.from_counts(counts.over_ranks())


def record(run: Run, validation: Validation | None) -> None:
    """One line for the user and one row for the files, about the epoch that has ended."""
    state, tracker, labels = run.model.state, run.tracker, run.data.labels
    total, dice, cross_entropy = (state.sums / run.steps).tolist()
    row = {
        "epoch": state.epoch + 1,
        "step": run.done,
        "learning_rate": run.schedule.at(run.done - 1),
        "loss": total,
        "dice_loss": dice,
        "cross_entropy": cross_entropy,
        **score_columns(validation, labels.class_names),
        "skipped_steps": run.guard.skipped,
        "images_per_second": tracker.images_per_second,
        "data_wait": tracker.data_wait,
        "seconds": tracker.seconds,
    }
    tracker.say(
        f"epoch {state.epoch + 1}: loss {total:.4f}, {describe_validation(validation, state.best)}, "
        f"{tracker.images_per_second:.1f} images/s, {tracker.data_wait:.0%} waiting for data, "
        f"{tracker.seconds:.1f} s"
    )
    tracker.write(row, run.done)


def describe_validation(validation: Validation | None, best: float) -> str:
    """A few words; `best` is the best Dice before."""
    if validation is None:
        return "not validated"
    dice, threshold = validation.scores.dice, validation.threshold
    words = f"validation Dice {dice:.4f}" + (" (best)" if dice > best else "")
    if threshold is not None:
        words += f", {validation.dice_at_threshold:.4f} at threshold {threshold:.3f}"
    return words


def save(run: Run, *, is_best: bool = False) -> None:
    """Have the checkpoints written beside what goes on, on the main process.

    What can't be written is told at the next save, which tries again.
    """
    if run.folder.writes:
        tell_trouble(run, run.folder.begin_write(compose(run, is_best=is_best), f"step {run.done}"))


def settle(run: Run) -> None:
    """Wait until what was saved is on the disk."""
    tell_trouble(run, run.folder.wait())


def tell_trouble(run: Run, warning: str) -> None:
    """Show a warning, if it is one."""
    if warning:
        run.tracker.say(warning)


def compose(run: Run, *, is_best: bool = False) -> dict[str, checkpoint.Content]:
    """Checkpoints by name, the best first: last.pt says that it is there."""
    state, model, config = run.model.state, run.model, run.config
    about = {
        "unet_ddp": __version__,
        "architecture": model.architecture.to_dict(),
        "labels": run.data.labels.to_dict(),
        "preprocessing": model.preprocessing.to_dict(),
        "config": settings(config),
        "names": split_fingerprint(run.data.split),
    }
    whole = {
        **about,
        **state.state_dict(),
        "images_per_step": run.sampler.per_step * run.world.size,
        "world_size": run.world.size,
        "launch": launch_name(),
        "made_with": {"torch": str(torch.__version__), "threads": torch.get_num_threads()},
    }
    files = {run.folder.last.name: whole}
    every = config.run.save_every
    if every and state.step == 0 and state.epoch % every == 0:
        files = {f"epoch_{state.epoch:04d}.pt": whole, **files}
    if is_best:
        best = {"score": state.best, "epoch": state.best_epoch}
        scored = {"model": state.scored.state_dict(), "best": best, "threshold": state.threshold}
        files = {"best.pt": {**about, **scored}, **files}
    return files


def finish(run: Run, number: int) -> None:
    """What is left to write and to say at the end of this start."""
    state, config = run.model.state, run.config
    rescue = Path(config.launch.rescue_dir) if config.launch.rescue_dir else None
    is_best = state.best_epoch == state.epoch - 1 and state.step == 0
    run.folder.finish(compose(run, is_best=is_best), f"step {run.done}", rescue)
    if number:
        name = signal.Signals(number).name
        print(f"stopped by {name} after step {run.done}; go on by --resume")
    elif not run.is_over:
        print(f"stopped at --max-steps {config.launch.max_steps}; go on by --resume")


def show(run: Run) -> None:
    """samples.png and report.html: what the best network makes of the validation images.

    The run is over and saved: what goes wrong here is a warning.
    """
    folder, pairs, state = run.folder.path, run.data.split.validation, run.model.state
    say, best = run.tracker.say, folder / "best.pt"
    try:
        picture = run.world.on_main(lambda: write_samples(folder, pairs, run.world.device))
        if picture is not None:
            say(f"best: epoch {state.best_epoch + 1}, validation Dice {state.best:.4f}; {best}")
            say(f"look at {picture}: image, truth and prediction")
        page = write_report(folder, pairs, run.world, workers=run.config.launch.workers)
        say(f"and at {page}: curves, scores and the worst images")
    except UserError as trouble:
        say(f"WARNING: {trouble}; the run is whole: later, python -m unet_ddp report {folder}")


if __name__ == "__main__":
    main()
