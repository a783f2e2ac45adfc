"""Kill ranks of a run on two hosts again and again; torchrun restarts it on both.

    python -m benchmarks.hosts --kills 20

Two network namespaces as hosts (Linux, root, ip), which share nothing but the data and torchrun's
store. A rank on one of them is killed (SIGKILL) at a random moment, every fourth time again while
the ranks of the new attempt find each other. A rank that took an earlier attempt's address for one
of this attempt would wait for --timeout and end the benchmark. The end is compared with that of an
undisturbed run, bit by bit.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chaos import LONGEST, VICTIM, same_weights
from benchmarks.images import make_images
from benchmarks.timing import new_parser, print_table
from tests.hosts import Hosts

IMAGES, STEPS_PER_EPOCH, STEPS_PER_KILL = 40, 9, 18


class TwoHosts:
    """A run on two hosts, one rank on each."""

    def __init__(self, network: Hosts, folder: Path, flags: list[str], restarts: int) -> None:
        self.network, self.folder, self.steps = network, folder, folder / "steps.txt"
        folder.mkdir()
        self.steps.touch()
        self.known: set[str] = set()
        self.launchers = [
            network.torchrun(
                host, folder / str(host), f"--max-restarts={restarts}", "--", *flags,
                program=str(VICTIM), CHAOS_STEPS=str(self.steps), CHAOS_PAUSE="0.02",
                TORCH_CPP_LOG_LEVEL="ERROR",
            )
            for host in (1, 2)
        ]  # fmt: skip

    @property
    def last(self) -> Path:
        return self.folder / "1" / "checkpoints" / "last.pt"

    def wait_for_step(self) -> float:
        """Return the seconds until a step of processes that have done none before."""
        began = time.monotonic()
        while not (new := self.read_processes() - self.known):
            ended = any(process.poll() is not None for process in self.launchers)
            if ended or time.monotonic() - began > LONGEST:
                raise self.fail("no further step")
            time.sleep(0.02)
        self.known |= new
        return time.monotonic() - began

    def read_processes(self) -> set[str]:
        return {line.partition(" ")[0] for line in self.steps.read_text().splitlines()}

    def kill_rank(self, host: int) -> int:
        """Return 1 if there is one to be killed."""
        self.known |= self.read_processes()
        processes = self.network.workers(host)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        return len(processes)

    def finish(self) -> None:
        if any(process.wait(10 * LONGEST) for process in self.launchers):
            raise self.fail("a launcher failed")

    def fail(self, reason: str) -> SystemExit:
        logs = [(self.folder / str(host) / "log.txt").read_text()[-4000:] for host in (1, 2)]
        return SystemExit("\n".join([*logs, reason]))


def main(argv: list[str] | None = None) -> int:
    """Print the table; return 1 if the run did not end as the undisturbed one."""
    parser = new_parser(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    dice, network, back = random.Random(options.seed), Hosts(), list[float]()
    first = twice = 0
    epochs = max(2, options.kills * STEPS_PER_KILL // STEPS_PER_EPOCH)
    try:
        with tempfile.TemporaryDirectory() as home:
            flags = [
                *make_images(Path(home, "data"), IMAGES, (32, 32)), "--width", "4", "--ema", "0.9",
                "--batch-size", "2", "--epochs", str(epochs), "--workers", "0", "--timeout", "90",
                "--save-every-steps", "4",
            ]  # fmt: skip
            wild = TwoHosts(network, Path(home, "wild"), flags, 2 * options.kills)
            wild.wait_for_step()
            for kill in range(options.kills):
                time.sleep(dice.uniform(0, 0.5))
                first += wild.kill_rank(dice.choice((1, 2)))
                if kill % 4 == 3:
                    time.sleep(dice.uniform(2, 10))
                    twice += wild.kill_rank(dice.choice((1, 2)))
                back.append(wild.wait_for_step())
            wild.finish()
            calm = TwoHosts(network, Path(home, "calm"), flags, 0)
            calm.finish()
            same = same_weights(calm.last, wild.last)
    finally:
        network.close()
    rows = [
        ("steps of the run", str(epochs * STEPS_PER_EPOCH)),
        ("kills of a rank on either host", str(first + twice)),
        ("of these, while the ranks found each other", str(twice)),
        ("restarts that came back by themselves", f"{len(back)} of {options.kills}"),
        ("seconds to come back", f"median {statistics.median(back):.1f}, most {max(back):.1f}"),
        ("final state bit-identical", "yes" if same else "NO"),
    ]
    print_table(("", ""), rows)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
