"""Optimizers, schedules and networks at equal processor time, on three sets, over several seeds.

    OMP_NUM_THREADS=1 python -m benchmarks.settings ../shared/data --results runs.jsonl
    OMP_NUM_THREADS=1 python -m benchmarks.settings ../shared/data --results search.jsonl \
        --only Muon --rates 1e-3 3e-3 1e-2 3e-2 --sets dsb2018 --seeds 5

Each kind trains a classic U-Net of width 8 as train.py does, but for what it changes, with each of
its peak learning rates, on one thread until it has used --seconds of the processor. The schedule
follows the time spent, so that each run is annealed to its end. Images lie decoded in memory. A
seed is for first weights, order and augmentation, and holds out another car, other frames of
CamVid, other microscope images. The score is their Dice (CamVid: mean IoU) after the last step;
validation takes none of the time. Runs that the results have are not repeated; other processes may
add other seeds meanwhile.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import update_bn

from benchmarks.kinds import KINDS, Kind, alternate_flip, schedule_free
from benchmarks.session import Session, open_session
from benchmarks.speedrun import spread
from benchmarks.timing import machine, new_parser, print_table
from unet_ddp.training.rehearsal import rehearse
from unet_ddp.training.state import Schedule, WeightAverage

TASKS = {  # scale, folds of which one is held out, flags; a fold of Carvana is a car
    "carvana": (0.0625, 6, ["--group-pattern", "^([^_]*)"]),
    "camvid": (0.25, 5, ["--ignore-index", "11", "--group-pattern", r"^(.{7}f?\d\d)"]),
    "dsb2018": (0.5, 5, ["--binary", "--augmentation", "overhead"]),
}
Runs = dict[tuple[str, str, int], dict[str, Any]]  # by set, variant and seed


@dataclass(frozen=True)
class TimedSchedule(Schedule):
    """A schedule that takes the share of the processor time for that of the steps."""

    seconds: float = 0.0
    began: float = field(default_factory=time.process_time)

    @property
    def share(self) -> float:
        """The part of the time that is spent; 1 at the end."""
        return (time.process_time() - self.began) / self.seconds

    def at(self, step: int) -> float:
        return super().at(round(self.share * self.steps))


def train(
    session: Session, smaller: Session, kind: Kind, rate: float, seed: int, seconds: float
) -> int:
    """Train the session's state anew for `seconds` of the processor; return the number of steps."""
    state, data, dataset = session.state, session.data, session.loaders.training.dataset
    torch.manual_seed(seed)
    network = kind.network(data.format.channels, data.labels.num_classes)
    state.network = state.replica = network.to(memory_format=torch.channels_last)
    state.optimizer = kind.optimizer(network, rate)
    state.average = WeightAverage(network, kind.average) if kind.average else None
    state.epoch, state.step, state.seed, usual = 0, 0, seed, dataset.augmentation
    if kind.alternates:
        dataset.augmentation = alternate_flip(usual)
    schedule = TimedSchedule(rate, 10_000, kind.warmup, kind.lowest, seconds=seconds)
    state.schedule, options, taken = schedule, session.config.optimization, 0
    for loaders, end in ((smaller.loaders, kind.half), (session.loaders, 1.0)):
        steps = rehearse(state, loaders, options)  # without end, as train.py takes them
        while schedule.share < end:
            if kind.cycles:
                for group in state.optimizer.param_groups:
                    group["betas"] = (0.95 - 0.1 * schedule.at(0) / rate, 0.999)
            if state.average is not None:
                state.average.decay = min(kind.average, (1 + taken) / (10 + taken))
            next(steps)
            taken += 1
        steps.close()
    if kind.optimizer is schedule_free:  # its weights need statistics of their own
        state.optimizer.eval()
        with state.precision.autocast():
            images = (state.preprocess(batch.image) for batch in session.loaders.training)
            update_bn(images, network)
    dataset.augmentation = usual
    return taken


def run_all(options: Any, name: str, seed: int, variants: dict[str, tuple[Kind, float]]) -> None:
    """Take the runs of a set and a seed in an order of their own: the machine's speed varies."""
    known = read_results(options.results, options.seconds)
    whole, folds, flags = TASKS[name]
    missing = [variant for variant in variants if (name, variant, seed) not in known]
    if not missing:
        return
    with ExitStack() as stack:
        home, folder = stack.enter_context(tempfile.TemporaryDirectory()), options.data / name
        flags = ["--images", f"{folder}/imgs", "--masks", f"{folder}/masks", *flags]
        flags += ["--folds", str(folds), "--fold", str(1 + seed % folds), "--workers", "0"]
        sessions = []
        for scale in (whole, whole / 2):
            own = ["--scale", str(scale), "--checkpoints", f"{home}/{scale}"]
            sessions.append(stack.enter_context(open_session([*flags, *own])))
            loaders = sessions[-1].loaders
            loaders.sampler.seed = loaders.training.dataset.augmentation.seed = seed
            for dataset in (loaders.training.dataset, loaders.validation.dataset):
                _ = [dataset[0, k] for k in range(len(dataset))]  # decoded, and kept in memory
        for k in np.random.default_rng(seed).permutation(len(missing)):
            kind, rate = variants[missing[k]]
            train(*sessions, kind, rate, seed, 0.5)  # a network's first steps take longer
            steps = train(*sessions, kind, rate, seed, options.seconds)
            scores = sessions[0].validate().scores
            score = scores.dice if len(scores.iou_per_class) == 2 else scores.iou
            run = {"set": name, "variant": missing[k], "seed": seed, "seconds": options.seconds}
            with options.results.open("a") as file:
                print(json.dumps(run | {"score": score, "steps": steps}), file=file)


def read_results(path: Path, seconds: float) -> Runs:
    runs = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return {(r["set"], r["variant"], r["seed"]): r for r in runs if r["seconds"] == seconds}


def report(runs: Runs, variants: Sequence[str]) -> None:
    """Print scores, their differences to the first variant's of the same seed, and steps over its."""
    rows = []
    for variant in variants:
        cells, steps = [variant], []
        for name in TASKS:
            own = {seed: run for (n, v, seed), run in runs.items() if (n, v) == (name, variant)}
            firsts = {seed: runs.get((name, variants[0], seed)) for seed in own}
            pairs = [(own[seed], first) for seed, first in firsts.items() if first]
            more = [run["score"] - first["score"] for run, first in pairs]
            steps += [run["steps"] / first["steps"] for run, first in pairs]
            cells.append(spread([run["score"] for run in own.values()], 3) if own else "")
            wins = f"{sum(m > 0 for m in more)} of {len(more)}"
            cells.append(f"{spread(more, 3)}; {wins}" if more else "")
        rows.append((*cells, f"{statistics.median(steps):.2f}" if steps else ""))
    head = [text for name in TASKS for text in (name, "over the first; better")]
    print_table(("variant", *head, "steps"), rows)


def main(argv: list[str] | None = None) -> int:
    """Take the runs that the results lack, and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("data", type=Path, help="folder of the folders carvana, camvid and dsb2018")
    parser.add_argument("--results", type=Path, required=True, help="file of JSON lines")
    parser.add_argument("--seconds", type=float, default=12, help="of the processor, for a run")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--sets", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rates", type=float, nargs="+", help="peak rates, instead of the kinds'")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    variants = {
        f"{name}, {rate:g}": (KINDS[name], rate)
        for name in options.only
        for rate in options.rates or KINDS[name].rates
    }
    for seed in options.seeds:
        for name in options.sets:
            run_all(options, name, seed, variants)
    print(machine())
    report(read_results(options.results, options.seconds), list(variants))
    return 0


if __name__ == "__main__":
    sys.exit(main())
