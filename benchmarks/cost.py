"""The cost of reliability: the loop with everything on, over the same loop with none of it.

    python -m benchmarks.cost

One process in a group of one, so that agreeing on signals is a collective; the classic U-Net
on drawn images. On: signals heard and agreed on at each step, steps that are not finite guarded
against and batch norm's statistics restored after them, last.pt written after every --steps.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from benchmarks.session import Session, new_session
from benchmarks.timing import machine, new_parser, print_table, take_turns
from unet_ddp.training import step

BATCH = 4


class Nothing:
    """A guard that judges nothing, and a signal that never comes."""

    reason = None
    skipped = 0

    def check(self, report: Any, step: int) -> None: ...

    def flush(self) -> None: ...

    def poll(self) -> bool:
        return False

    poll_now = poll

    def request_stop(self, error: Exception) -> None:
        raise error


def train_unguarded(session: Session) -> None:
    """Train one epoch with nothing that only reliability needs."""
    with (
        mock.patch.multiple(
            step, snapshot_buffers=lambda buffers: [], restore_unless=lambda ok, *buffers: None
        ),
        mock.patch.object(session.folder, "is_due", lambda step: False),
        mock.patch.object(session.tracker, "_guard", Nothing()),
    ):
        session.train_one_epoch(Nothing())


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--steps", type=int, default=50, help="steps in a turn, and between saves")
    parser.add_argument("--turns", type=int, default=7)
    options, flags = parser.parse_known_args(argv)
    flags = [
        "--validation", "0", "--batch-size", str(BATCH), "--width", "16",
        "--save-every-steps", str(options.steps), *flags,
    ]  # fmt: skip
    with new_session(options.steps * BATCH, flags, grouped=True) as session:
        took = take_turns(
            {
                "everything on": session.train_one_epoch,
                "none of it": lambda: train_unguarded(session),
            },
            options.turns,
        )
    print(machine())
    rows = [(name, f"{options.steps / turns.median:.2f}") for name, turns in took.items()]
    on, off = took.values()
    print_table(("", "steps/s"), [*rows, ("ratio", off.over(on))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
