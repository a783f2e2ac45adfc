"""What reliability costs: the loop with everything on, over the same loop with none of it.

    python -m benchmarks.cost

One process in a group of its own, so that agreeing on signals is a collective; the classic U-Net
on made-up images. With: signals heard and agreed on at each step, steps that are not finite
guarded against and batch norm's statistics kept for them, last.pt written after every block. The
two take turns in one process, and the medians of their turns are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import train
from benchmarks.timing import make_images
from unet_ddp.cli import parse_train
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.distributed.world import World
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.resume import open_run
from unet_ddp.training import step as engine

BATCH = 4


class Nothing:
    """No guard, and no signals."""

    def look(self, report: Any, step: int) -> None: ...

    def poll(self) -> int:
        return 0

    def poll_now(self) -> int:
        return 0

    def request_stop(self, error: Exception) -> None:
        raise error


def turn(run: train.Run, *, guarded: bool) -> float:
    """Steps per second in one epoch."""
    state, options = run.model.state, run.config.run
    if not guarded:
        bare = replace(options, save_every_steps=0, save_every_minutes=0.0)
        run = replace(run, guard=Nothing(), config=replace(run.config, run=bare))
    off = mock.patch.multiple(
        engine, snapshot_buffers=lambda network: [], restore_unless=lambda before, is_finite: None
    )
    with (
        StopSignal(run.world) if guarded else nullcontext(Nothing()) as preemption,
        nullcontext() if guarded else off,
    ):
        began = time.perf_counter()
        train.learn(run, preemption)
        seconds = time.perf_counter() - began
    state.finish_epoch(0.0)
    return run.steps / seconds


def measure(world: World, home: Path, options: argparse.Namespace) -> list[tuple[float, float]]:
    """Steps per second with and without, turn by turn; the first of each, a warm-up, left out."""
    words = [
        *make_images(home / "data", options.steps * BATCH), "--validation", "0",
        "--batch-size", str(BATCH), "--width", str(options.width), "--epochs", "9999",
        "--save-every-steps", str(options.steps), "--checkpoints", str(home / "run"),
        *(["--workers", str(options.workers)] if options.workers is not None else []),
    ]  # fmt: skip
    config = parse_train(words)
    with RunFolder(config.folder, writes=True) as folder:
        run = train.begin(config, world, folder, open_run(config, folder))
        found = []
        for number in range(options.turns + 1):
            order = (True, False) if number % 2 else (False, True)
            speeds = {guarded: turn(run, guarded=guarded) for guarded in order}
            found.append((speeds[True], speeds[False]))
        run.tracker.close()
    return found[1:]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50, help="steps in a turn, and between saves")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args(argv)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        world = join("auto", 60)
        found = measure(world, Path(home), options)
        leave(world)
    on, off = (statistics.median(speeds) for speeds in zip(*found, strict=True))
    ratios = sorted(guarded / bare for guarded, bare in found)
    print("| | |\n|---|---|")
    print(f"| width, images, batch | {options.width}, 240x160, {BATCH} |")
    print(f"| steps per second with everything on, a save every {options.steps} | {on:.2f} |")
    print(f"| steps per second with none of it | {off:.2f} |")
    print(
        f"| ratio, turn by turn | median {statistics.median(ratios):.3f}, "
        f"{ratios[0]:.3f} to {ratios[-1]:.3f} in {len(ratios)} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
