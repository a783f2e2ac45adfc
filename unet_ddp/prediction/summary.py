"""The lines at the end of a job of predictions."""

from __future__ import annotations

from unet_ddp.errors import count_of, print_lines
from unet_ddp.files import complain
from unet_ddp.prediction.pipeline import Job


def print_summary(
    job: Job, failed: int, single_class: int, skipped: int, kept: int, *, few: int
) -> None:
    """Print how the job went; up to `few` images have a line each, printed before."""
    total = len(job.files)
    if total > few:
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
