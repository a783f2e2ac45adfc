"""Give mutated files to the commands, and count how they end.

    python -m benchmarks.fuzz [--cases N] [--seed S] [KIND ...]
    python -m benchmarks.fuzz --seed S --case K KIND

Each case is a process forked from this one, which has the imports, and may take 10 s and 1 GB. It
must end as with the valid file, or in one line that says what is wrong. Two run at a time.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.fuzz.child import FAULTS, LINE, SAME, SECONDS, Build, Case, Outcome, run_cases
from benchmarks.fuzz.kinds import KINDS
from benchmarks.fuzz.mutations import Dice
from benchmarks.fuzz.samples import Samples, make_samples
from benchmarks.timing import new_parser, print_table

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}
_HEAVY = (
    "albumentations", "cv2", "onnx", "onnxruntime", "segmentation_models_pytorch", "tifffile", "torch._dynamo",
    "torch.utils.tensorboard", "unet_ddp.commands.doctor", "unet_ddp.commands.evaluate",
    "unet_ddp.extras.report.command", "unet_ddp.extras.report.charts", "yaml",
)  # fmt: skip


def build_case(kind: str, case: int, folder: Path, *, samples: Samples, seed: int) -> Case:
    """Write the files of a case; those of case -1 are valid."""
    dice = Dice(f"{seed} {kind} {case}")
    dice.is_calm = case < 0
    return KINDS[kind](samples, folder, dice)


def run_kind(
    kind: str, cases: list[int], samples: Samples, options: argparse.Namespace
) -> Iterator[tuple[int, Outcome]]:
    """Yield the number and outcome of each case of a kind."""
    builds: list[tuple[str, Build]] = [
        (f"{kind}-{case}", partial(build_case, kind, case, samples=samples, seed=options.seed))
        for case in cases
    ]
    for name, outcome in run_cases(builds, samples.home, keep=options.case is not None):
        yield int(name.removeprefix(f"{kind}-")), outcome


def run_all(samples: Samples, options: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    """Yield a row of the table for each kind; faults are printed to stderr as they are found."""
    for kind in options.kinds or KINDS:
        began, counts, slowest = time.time(), Counter[str](), 0.0
        cases = [-1, *range(options.cases)] if options.case is None else [options.case]
        for case, outcome in run_kind(kind, cases, samples, options):
            if case < 0:
                if outcome.verdict != SAME:
                    raise SystemExit(f"{kind}: the valid file fails\n{outcome.text}")
                continue
            counts[outcome.verdict] += 1
            slowest = max(slowest, outcome.seconds)
            if outcome.verdict in FAULTS:
                options.faults += 1
                print(
                    f"{outcome.verdict}: --seed {options.seed} --case {case} {kind}: "
                    f"{outcome.line}",
                    file=sys.stderr,
                    flush=True,
                )
            if options.case is not None:
                print(f"{samples.home}/{kind}-{case}: {outcome.verdict}\n{outcome.text[-6000:]}")
        took = f"{time.time() - began:.0f}"
        yield kind, *(counts[verdict] for verdict in (SAME, LINE, *FAULTS)), f"{slowest:.1f}", took


def main(argv: list[str] | None = None) -> int:
    """Print the table; return 1 if there was any fault."""
    parser = new_parser(__doc__)
    parser.add_argument("--cases", type=int, default=300, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat this one alone, and keep its folder")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args(argv)
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"{', '.join(unknown)}: unknown; use {', '.join(KINDS)}")
    options.faults = 0
    torch.set_num_threads(1)  # a forked process would miss the others
    os.environ |= _ENVIRONMENT
    for name in _HEAVY:
        import_module(name)
    gc.collect()
    gc.freeze()
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        head = ("kind", SAME, LINE, *FAULTS, "slowest, s", "seconds")
        print_table(head, run_all(make_samples(home), options))
    finally:
        if options.case is None:
            shutil.rmtree(home)
    gc.unfreeze()
    print(f"faults: {options.faults}; limits: {SECONDS:g} s and 1 GB for each case")
    return 1 if options.faults else 0


if __name__ == "__main__":
    sys.exit(main())
