"""The lines of a job of predictions: one for each image if they are few, and those at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tqdm import tqdm

from unet_ddp.errors import UserError, count_of, hides_bars, print_lines
from unet_ddp.files import complain
from unet_ddp.files.output import say
from unet_ddp.prediction.pipeline import Job, Outcome

FEW = 20  # images that get a line each; for more, a summary is printed


class Tally(NamedTuple):
    """The numbers of images of a process that failed, have one class only, were skipped, and had files that are the same."""

    failed: int = 0
    single_class: int = 0
    skipped: int = 0
    kept: int = 0
    example: str = ""  # a file of an image that was predicted


def print_outcomes(job: Job, outcomes: Iterable[Outcome]) -> Tally:
    """Print the outcomes of this process's images, and return their numbers.

    A bar shows all processes' images, if there are several.
    """
    failed = single_class = skipped = kept = 0
    example = ""
    total = len(job.files)
    shown = total > 1 and job.world.is_main
    disable = hides_bars() if shown else True
    with tqdm(total=total, unit="image", disable=disable, dynamic_ncols=True) as bar:
        for outcome in outcomes:
            line = outcome.line
            if outcome.single_class:
                single_class += 1
                line += f"; warning: all of it is {outcome.single_class}"
            kept += outcome.kept > 0
            example = example or outcome.example
            if outcome.is_skipped:
                skipped += 1
            elif outcome.error:
                failed += 1
                complain(UserError(outcome.error))
            elif total <= FEW:
                say(line)
            done = 1 if outcome.is_shared else job.world.size  # the others are about as far
            bar.update(min(done, total - bar.n))
    return Tally(failed, single_class, skipped, kept, example)


def print_summary(job: Job, tallies: Sequence[Tally]) -> None:
    """Print how the job went on all processes, after its outcomes."""
    failed = sum(each.failed for each in tallies)
    single_class = sum(each.single_class for each in tallies)
    skipped = sum(each.skipped for each in tallies)
    kept = sum(each.kept for each in tallies)
    examples = (each.example for each in tallies)
    total = len(job.files)
    if total > FEW:
        line = f"{count_of(total - failed - skipped, 'image')} predicted"
        if example := next(filter(None, examples), ""):
            line += f", e.g. {example}"
        if kept:
            line += f"; {kept} had files that are the same, and are kept"
        print_lines(line)
        if single_class:
            print(f"warning: {single_class} of them have one class only")
    if skipped:
        print(f"{count_of(skipped, 'image')} skipped: the files already exist")
    for records in job.records:
        line = f"{records.path}: {count_of(total - failed, 'image')}"
        missing = total - failed - records.count
        if missing > 0:  # the mean of what is in a list is not that of all images
            line += f", {missing} without an entry"
        print_lines(line)
    if failed:
        complain(f"{failed} of {total} images could not be predicted", begin="")
