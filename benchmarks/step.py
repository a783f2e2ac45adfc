"""Images per second of the real training loop, over the bare step on one fixed batch.

    python -m benchmarks.step [--width 16] [--size 240 160] [--batch-size 4] [--compile]

Bare: the same network, loss and optimizer; forward, backward, step, and nothing else. Real: what
train.py does, with its loader, augmentation, clipping, guard, agreement on signals and progress.
The two take turns in one process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import train
from benchmarks.timing import machine, make_images, ratios, take_turns
from unet_ddp.cli import parse_train
from unet_ddp.data.dataset import Sample
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.resume import open_run
from unet_ddp.training.step import _to_device


def bare(run: train.Run, batch: Sample) -> None:
    """An epoch's steps on one batch that lies on the device as the network takes it."""
    model, state = run.model, run.model.state
    images, masks = _to_device(batch, run.world.device)
    images = model.preprocessing(images)
    optimizer = torch.optim.AdamW(state.network.parameters(), fused=True)
    state.replica.train()
    for _ in range(run.steps):
        with state.precision.autocast():
            logits = state.replica(images)
        model.loss(logits, masks).total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    settle(run.world)


def real(run: train.Run) -> None:
    """An epoch as train.py has it, scoring left out."""
    with StopSignal(run.world) as preemption:
        train.learn(run, preemption)
    settle(run.world)
    run.model.state.finish_epoch(0.0)


def settle(world: World) -> None:
    """Wait for the device."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30, help="steps in a turn")
    parser.add_argument("--turns", type=int, default=7)
    options, more = parser.parse_known_args(argv)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        words = [
            *make_images(Path(home) / "data", options.steps * options.batch_size),
            "--validation", "0", "--batch-size", str(options.batch_size),
            "--width", str(options.width), "--epochs", "9999", "--cache", "--checkpoints", f"{home}/run", *more,
        ]  # fmt: skip
        world = join("auto", 60)
        config = parse_train(words)
        with RunFolder(config.folder, writes=True) as folder:
            run = train.begin(config, world, folder, open_run(config, folder))
            run.sampler.start_at(0, 0)
            batch = next(iter(run.training))
            works = [lambda: real(run), lambda: bare(run, batch)]
            take_turns(works, 1)
            began = time.perf_counter()
            took = take_turns(works, options.turns)
            run.tracker.close()
            run.close()
        show(run, took, time.perf_counter() - began)
        leave(world)
    return 0


def show(run: train.Run, took: list[list[float]], seconds: float) -> None:
    """One table."""
    images = run.steps * run.sampler.per_step
    print(machine())
    print("| loop | images/s |\n|---|---|")
    for name, turns in zip(("real", "bare"), took, strict=True):
        print(f"| {name} | {images / median(turns):.2f} |")
    print(f"| real over bare | {ratios(took[1], took[0])} |")
    print(f"\n{seconds:.0f} s in all; {run.tracker.data_wait:.1%} waiting for data")


if __name__ == "__main__":
    sys.exit(main())
