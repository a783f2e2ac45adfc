"""Validation's images per second, over the bare forward passes of as many images.

    python -m benchmarks.score [--images 60] [--width 16] [--scale 1.0]

Real: validation of train.py after an epoch: its loader, one image at a time, confusion and
histogram counted. The images are 240x160. Other flags are train.py's.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.session import Session, new_session
from benchmarks.timing import machine, new_parser, print_table, take_turns
from unet_ddp.data.dataset import Sample
from unet_ddp.training.prefetch import copy_to_device


@torch.inference_mode()
def validate_bare(session: Session, batch: Sample, count: int) -> None:
    """Take `count` forward passes of one image that lies on the device as the network takes it."""
    state = session.state
    images = state.preprocess(copy_to_device(batch, session.world.device).image)
    network = state.validation_network.eval()
    for _ in range(count):
        with state.precision.autocast():
            network(images)
    session.synchronise()


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--images", type=int, default=60, help="to score in a turn")
    parser.add_argument("--turns", type=int, default=9)
    options, flags = parser.parse_known_args(argv)
    flags = ["--validation", "50", "--width", "16", "--cache", *flags]
    with new_session(2 * options.images, flags) as session:
        assert session.loaders.validation is not None
        count = len(session.data.split.validation)
        batch = next(iter(session.loaders.validation))
        took = take_turns(
            {
                "real": session.validate,
                "bare forward passes": lambda: validate_bare(session, batch, count),
            },
            options.turns,
        )
    print(machine())
    rows = [(name, f"{count / turns.median:.2f}") for name, turns in took.items()]
    rows.append(("real over bare", took["bare forward passes"].over(took["real"])))
    print_table(("scoring", "images/s"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
