"""The lines of a job of predictions: one for each image if they are few, and those at its end."""

from __future__ import annotations

from collections.abc import Iterable

from tqdm import tqdm

from unet_ddp.errors import UserError, count_of, hides_bars, print_lines
from unet_ddp.files import complain
from unet_ddp.files.output import say
from unet_ddp.prediction.pipeline import Job, Outcome

FEW = 20  # images that get a line each; for more, a summary is printed


def print_outcomes(job: Job, outcomes: Iterable[Outcome]) -> tuple[int, int, int, int]:
    """Print the outcomes; return how many images failed, have one class only, were skipped, and had files that are the same.

    A bar shows all processes' images, if there are several.
    """
    failed = single_class = skipped = kept = 0
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
            if outcome.is_skipped:
                skipped += 1
            elif outcome.error:
                failed += 1
                complain(UserError(outcome.error))
            elif total <= FEW:
                say(line)
            done = 1 if outcome.is_shared else job.world.size  # the others are about as far
            bar.update(min(done, total - bar.n))
    return failed, single_class, skipped, kept


def print_summary(job: Job, failed: int, single_class: int, skipped: int, kept: int) -> None:
    """Print how the job went, after its outcomes."""
    total = len(job.files)
    if total > FEW:
        line = f"{count_of(total - failed - skipped, 'image')} predicted"
        for example in job.files[0].written[:1]:
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
