"""``python -m unet_ddp doctor``: describe a data set, and list what is wrong with it.

The check is that of train.py, which stops at the first problem where the doctor lists all.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from unet_ddp.checks.check import CheckedData, check_classes, check_dataset
from unet_ddp.checks.summary import class_pixels
from unet_ddp.cli import parse_train
from unet_ddp.cli.recipes import name_recipe
from unet_ddp.config import TrainConfig, all_but
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import Report
from unet_ddp.data.readers.read import use_own_readers
from unet_ddp.data.samplers import TrainingSampler
from unet_ddp.errors import align, count_of, join_some, print_lines
from unet_ddp.settings import Kind

_MOST_CLASSES = 21  # rows of the table, as many as Pascal VOC has


@dataclass(frozen=True)
class DoctorConfig(TrainConfig):
    """Check a data set before training on it.

    Takes the flags of train.py that are about data, and those that its size limits. Exit status 0: ok; 2: not fit to train on.
    """

    unused = all_but(Kind.DATA, Kind.LIMITED_BY_DATA)
    strict: bool = False
    """Exit with status 1 if there are warnings."""


def main(argv: Sequence[str]) -> int:
    """Check the data set that `argv` names; return 0 if ok, 1 if --strict and warnings, 2 if unfit."""
    config = parse_train(argv, prog="python -m unet_ddp doctor", kind=DoctorConfig)
    use_own_readers(config.data.reader)
    report = Report(collects=True)
    data = check_dataset(
        config.data, report, seed=config.optimization.seed, skip_bad=config.launch.skip_bad_files
    )
    if data is not None:
        report.attempt(data.table.pairs.check_content)
        if data.labels is not None:
            weights = config.optimization.class_weights
            report.attempt(partial(check_classes, data.labels, weights))
        options, split = config.optimization, data.split
        if split is not None and options.batch_size != "auto":  # one step of one process
            count, per_step = len(split.training), options.batch_size * options.accumulate
            alone = {"rank": 0, "size": 1, "seed": options.seed}
            report.attempt(lambda: TrainingSampler(count, per_step, **alone))
    recipe = config.launch.config, config.recipe
    report.problems = [name_recipe(problem, *recipe) for problem in report.problems]
    print_lines(*format_findings(report, data))
    if report.problems:
        return 2
    return 1 if report.warnings and config.strict else 0


def format_findings(report: Report, data: CheckedData | None) -> list[str]:
    """Return all findings as lines for a terminal."""
    lines = list(report.notes)
    if data is not None:
        lines += _describe_files(data)
        if not report.problems and data.labels and data.labels.named_values:
            lines += ["", *_describe_classes(data)]
        groups = Counter(data.groups.values()).most_common()
        if data.split and 0 < len(groups) < len(data.split.training) + len(data.split.validation):
            lines.append("groups: " + join_some([f"{name} ({n})" for name, n in groups], 8))
    lines.append("")
    lines += [f"error: {line}" for line in report.problems]
    lines += [f"warning: {line}" for line in report.warnings]
    if report.problems:
        return [*lines, f"unfit to train: {count_of(len(report.problems), 'problem')}"]
    if report.warnings:
        return [*lines, f"ready to train, with {count_of(len(report.warnings), 'warning')}"]
    return [*lines, "ok: ready to train"]


def _describe_files(data: CheckedData) -> list[str]:
    """Return lines with formats, sizes and mask values, the most frequent first."""
    values, show = data.values, Labels((), data.values.rgb).show
    formats: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for kind, count, _ in data.table.groups:
        for counter, suffix in zip(formats, kind.suffixes, strict=True):
            counter[suffix.lower()] += count
    image_formats, mask_formats = (
        join_some([f"{n} {suffix}" for suffix, n in each.most_common()], 6) for each in formats
    )
    sizes = [f"{n} of {width}x{height}" for (height, width), n in data.table.sizes.most_common()]
    form = "colour" if values.rgb else "palette" if values.palette else "grey"
    total = sum(values.counts.values())
    counts = sorted(values.counts.items(), key=lambda item: -item[1])
    shares = join_some([f"{show(value)} ({count / total:.2%})" for value, count in counts], 12)
    return [
        f"images: {image_formats}; {join_some(sizes, 6)}",
        f"masks: {mask_formats}; {form}, values {shares}",
    ]


def _describe_classes(data: CheckedData) -> list[str]:
    """Return a table of the classes, their shares of the pixels and a balancing weight of each.

    The weight is the median frequency over the class's own, a frequency being its share of the
    pixels (Eigen & Fergus, "Predicting depth, surface normals and semantic labels", 2015).
    """
    labels, split = data.labels, data.split
    assert labels is not None and split is not None
    sides = (
        class_pixels(data.table, labels, pairs) for pairs in (split.training, split.validation)
    )
    training, validation = ([n / (sum(counts) or 1) for n in counts] for counts in sides)
    median = statistics.median([share for share in training if share] or [1.0])
    rows = [["class", "name", "mask value", "of training", "of validation", "balancing weight"]]
    for k, name in enumerate(labels.class_names):
        weight = round(median / training[k], 3) if training[k] else 0.0
        shares = f"{training[k]:.2%}", f"{validation[k]:.2%}"
        rows.append([str(k), name, labels.show(labels.values[k]), *shares, f"{weight:g}"])
    lines = align(rows)
    hidden = len(lines) - 1 - _MOST_CLASSES
    if hidden > 1:  # the findings below must stay in sight
        lines[-2 - hidden : -2] = [f"… {hidden} more classes"]
    return lines
