"""The other network of ``evaluate --against``: a checkpoint, or what an evaluation of it has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from unet_ddp.checkpoints.weights import SavedModel, find_model, read_model
from unet_ddp.data.csv_cells import read_rows
from unet_ddp.data.groups import group_names
from unet_ddp.data.labels import Labels
from unet_ddp.data.names import file_key
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, join_some, shorten
from unet_ddp.evaluation.job import Job
from unet_ddp.evaluation.results import Evaluation
from unet_ddp.evaluation.tables import COUNTS
from unet_ddp.evaluation.trained_on import warn_of_trained
from unet_ddp.extras.against.difference import Table, compare
from unet_ddp.files import as_path, is_address
from unet_ddp.metrics.scores import count_classes
from unet_ddp.prediction.backends import check_described

_OBJECTS = "matched_objects", "true_objects", "predicted_objects"  # as COUNTS of a class
_SHOWN = 16  # classes in a message


def score_other(
    against: str,
    job: Job,
    world: World,
    *,
    threshold: float | None,
    score: Callable[[Job], Evaluation],
) -> Callable[[Evaluation], list[str]]:
    """Score the other network, unless that is done; return what compares an evaluation of `job` with it.

    `against` names it, its `threshold` is its own by default, and `score` is called on every rank.

    Raises:
        UserError: it was scored on other images, or has other classes, on every rank.
    """
    if _labels_of(job.model, job.source).may_overlap:
        raise UserError("--against: is for classes that do not overlap; leave it out")
    other = world.on_main(lambda: _find_other(against, job, threshold))
    lines = [f"against {against}:"]
    if isinstance(other, Job):
        is_one_split = job.model.run.get("names") == other.model.run.get("names")
        seen = world.on_main(partial(warn_of_trained, other))
        if not seen and job.images is None and not is_one_split:
            seen = ["warning: it had another split, and may have been trained on some of them"]
        lines += [f"  {line}" for line in seen]
        other = count(score(other))
    groups = {**group_names(job.pairs, None), **job.groups}

    def describe(evaluation: Evaluation) -> list[str]:
        return [*lines, *compare(count(evaluation), other, groups, evaluation.labels.num_classes)]

    return describe


def count(evaluation: Evaluation) -> Table:
    """Return for each image the counts of its classes, then of its objects if they were scored."""
    table: Table = {}
    for record in evaluation.records:
        row = [*chain(*count_classes(record.confusion))]
        if record.tally:
            row += record.tally.counts
        table[record.name] = row
    return table


def _labels_of(model: SavedModel, source: Path) -> Labels:
    return check_described(model, source)[1]


def _find_other(against: str, job: Job, threshold: float | None) -> Job | Table:
    """Return the other network, to be scored as in `job`, or what an evaluation of it has counted."""
    given = as_path(against)
    classes = _labels_of(job.model, job.source).class_names
    table = given if given.suffix == ".csv" else given / "per_image.csv"
    if not is_address(table) and table.is_file():
        return _read_counts(table, job, classes)
    source = find_model(against)
    try:
        model = read_model(source)
    except UserError as error:
        raise UserError(f"--against {error}") from None
    _check_classes(source, _labels_of(model, source).class_names, classes)
    return replace(job, model=model, source=source, threshold=threshold or model.threshold)


def _read_counts(path: Path, job: Job, classes: list[str]) -> Table:
    """Return the counts of an evaluation by the names of its images."""
    rows = read_rows(path, "--against", errors="surrogateescape")
    heading = rows[0][1] if rows else []
    found = [name.partition("_")[2] for name in heading if name.startswith(COUNTS[0])]
    _check_classes(path, found, classes)
    names = [f"{count}_{name}" for name in classes for count in COUNTS]
    columns = [heading.index(name) for name in (*names, *_OBJECTS) if name in heading]
    table: Table = {}
    for line, row in rows[1:]:
        try:
            table[file_key(row[0])] = [int(row[k]) for k in columns]
        except (ValueError, IndexError):
            raise UserError(
                f"--against {path}: line {line} is {shorten(','.join(row))}, no counts of an image; evaluate again"
            ) from None
    wanted = {*job.pairs.names()}
    if table.keys() != wanted:
        raise UserError(
            f"--against {path}: has {len(table)} images, {len(wanted)} are scored here, and "
            f"{len(table.keys() & wanted)} are in both; score the same images, or name its checkpoint"
        )
    return table


def _check_classes(path: Path, found: list[str], wanted: list[str]) -> None:
    if found != wanted:
        classes = join_some(found, _SHOWN) or "none"
        raise UserError(
            f"--against {path}: its classes are {classes}, not {join_some(wanted, _SHOWN)}; name a "
            "checkpoint for the same classes, or evaluate it again"
        )
