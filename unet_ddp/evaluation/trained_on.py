"""Images that a network was trained on, by the split.csv beside its checkpoint, or by the names of its run's data."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from unet_ddp.data.pairs import Pairs
from unet_ddp.errors import count_of
from unet_ddp.evaluation.job import Job
from unet_ddp.evaluation.validation_split import rebuild
from unet_ddp.files import is_address
from unet_ddp.plugins import names_object
from unet_ddp.prediction.backends import check_described


def warn_of_trained(job: Job) -> list[str]:
    """Return a warning if the run of a job's model was trained on images of its pairs; else nothing.

    Files of this machine are compared by their paths, so copies in another folder are not found. Runs on packs,
    windows and storage have no split.csv: their whole data set is found, and one that was moved. A place of the run
    that can't be looked at, as another user's, is no error: nothing is known of it.
    """
    what = f"of these {count_of(len(job.pairs), 'image')}"
    if count := _count_listed(job.source, job.pairs):
        return [_warn_of(count, what)]
    try:
        return _warn_of_run(job, what)
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that none can have
        return []


def _warn_of(count: int, what: str) -> str:
    return f"warning: it was trained on {count} {what}, which it knows: the score on new images may be lower"


def _warn_of_run(job: Job, what: str) -> list[str]:
    """Return a warning if the given images are, or are named as, the whole data of the run; else nothing."""
    config = job.model.run.get("config")
    own = config.get("images") if isinstance(config, Mapping) else None
    if job.images is None or not isinstance(own, str) or any(map(_is_elsewhere, (own, job.images))):
        return []
    there, given = (Path(text).resolve() for text in (own, job.images))
    is_there = there == given
    count = _count_of_run(job) if is_there or not there.exists() else 0
    if not count:
        return []
    if is_there:
        return [_warn_of(count, what)]
    flags = "--images" if job.masks is None else "--images and --masks"
    return [
        f"warning: they are named as the images of its run, which are no longer in {own}: if they are the same, it was "
        f"trained on {count} {what}; to score its validation set alone, move or link them back, and leave out {flags}"
    ]


def _is_elsewhere(place: str) -> bool:
    """Return whether images are at an address, or in an object of Python: neither is opened for a warning."""
    return is_address(place) or names_object(place)


def _count_listed(source: Path, pairs: Pairs) -> int:
    """Return how many of `pairs` are files that the split.csv beside a checkpoint names as training images."""
    real_folder = cache(os.path.realpath)  # many images have one

    def resolve(path: Path) -> tuple[str, str]:
        real = Path(os.path.realpath(path)) if path.is_symlink() else path  # few are
        return real_folder(real.parent), real.name

    try:
        path = source.with_name("split.csv")
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = [*csv.DictReader(file)]
        trained = {resolve(Path(row["image"])) for row in rows if row["split"] == "training"}
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, csv.Error):  # it is damaged
        return 0
    files = (pair.image for pair in pairs if type(pair.image) is type(Path()))  # not of a pack
    return sum(resolve(image.absolute()) in trained for image in files)


def _count_of_run(job: Job) -> int:
    """Return how many images the run was trained on, if the given ones have the names of its data; else 0."""
    run = job.model.run
    if not run.get("names"):
        return 0
    config = {**run["config"], "images": job.images, "masks": job.masks}
    labels = check_described(job.model, job.source)[1]
    return len(rebuild({**run, "config": config}, job.source, labels).split.training)
