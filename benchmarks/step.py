"""Images per second of the real training loop, over the bare step on one fixed batch.

    python -m benchmarks.step [--size 240 160] [--width 16] [--batch-size 4] [--compile]

Bare: the same network, loss and optimizer; forward, backward, step, and nothing else. Real: an
epoch of train.py, with its loader, augmentation, clipping, guard, agreement on signals and
progress. Other flags are train.py's.
"""

from __future__ import annotations

import sys

import torch

from benchmarks.session import Session, new_session
from benchmarks.timing import machine, new_parser, print_table, take_turns
from unet_ddp.data.dataset import Sample
from unet_ddp.distributed.device import cudnn_autotuning
from unet_ddp.training.prefetch import copy_to_device


def train_bare(session: Session, batch: Sample) -> None:
    """Take an epoch's steps on one batch that lies on the device as the network takes it."""
    state = session.state
    images = state.preprocess(batch.image)
    optimizer = torch.optim.AdamW(state.network.parameters(), fused=True)
    state.replica.train()
    with cudnn_autotuning():
        for _ in range(state.steps_per_epoch):
            with state.precision.autocast():
                logits = state.forward(images)
            state.loss(logits, batch.mask).total.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    session.synchronise()


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--size", type=int, nargs=2, default=(240, 160))
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30, help="steps in a turn")
    parser.add_argument("--turns", type=int, default=7)
    options, flags = parser.parse_known_args(argv)
    images = options.steps * options.batch_size
    flags = [
        "--validation", "0", "--batch-size", str(options.batch_size), "--width", "16", "--cache",
        *flags,
    ]  # fmt: skip
    with new_session(images, flags, grouped=True, size=options.size) as session:
        first = next(iter(session.loaders.training.loader))
        batch = copy_to_device(first, session.world.device)
        took = take_turns(
            {
                "real": session.train_one_epoch,
                "bare": lambda: train_bare(session, batch),
            },
            options.turns,
        )
    print(machine())
    rows = [(name, f"{images / turns.median:.2f}") for name, turns in took.items()]
    rows.append(("real over bare", took["bare"].over(took["real"])))
    print_table(("loop", "images/s"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
