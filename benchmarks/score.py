"""Validation's images per second, over the bare forward passes of as many images.

    python -m benchmarks.score [--width 16] [--images 60] [--scale 1.0] [--no-cache …]

Real: what train.py does after an epoch: its loader, one image at a time, confusion and histogram
counted. The images are 240x160. The two take turns in one process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch

import train
from benchmarks.timing import machine, make_images, ratios, take_turns
from unet_ddp.cli import parse_train
from unet_ddp.data.dataset import Sample
from unet_ddp.distributed.join import join, leave
from unet_ddp.distributed.stop_signal import StopSignal
from unet_ddp.runs.folder import RunFolder
from unet_ddp.runs.resume import open_run
from unet_ddp.training.step import _to_device


@torch.inference_mode()
def bare(run: train.Run, batch: Sample, count: int) -> None:
    """`count` forward passes of one image that lies on the device as the network takes it."""
    state = run.model.state
    images = run.model.preprocessing(_to_device(batch, run.world.device)[0])
    state.scored.eval()
    for _ in range(count):
        with state.precision.autocast():
            state.scored(images)
    if run.world.device.type == "cuda":
        torch.cuda.synchronize()


def real(run: train.Run) -> None:
    """As after an epoch."""
    with StopSignal(run.world) as preemption:
        train.score(run, preemption)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--images", type=int, default=60, help="to score in a turn")
    parser.add_argument("--turns", type=int, default=9)
    options, more = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        words = [
            *make_images(Path(home) / "data", 2 * options.images), "--validation", "50",
            "--width", str(options.width), "--cache", "--checkpoints", f"{home}/run", *more,
        ]  # fmt: skip
        world = join("auto", 60)
        config = parse_train(words)
        with RunFolder(config.folder, writes=True) as folder:
            run = train.begin(config, world, folder, open_run(config, folder))
            assert run.validation is not None
            count, batch = len(run.data.split.validation), next(iter(run.validation))
            works = [lambda: real(run), lambda: bare(run, batch, count)]
            take_turns(works, 1)
            took = take_turns(works, options.turns)
            run.tracker.close()
            run.close()
        leave(world)
    print(machine())
    print("| scoring | images/s |\n|---|---|")
    for name, turns in zip(("real", "bare forward passes"), took, strict=True):
        print(f"| {name} | {count / median(turns):.2f} |")
    print(f"| real over bare | {ratios(took[1], took[0])} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
