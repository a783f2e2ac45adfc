"""Check of a whole data set before the first step.

A run stops at the first kind of problem; the doctor collects all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from unet_ddp.checks import sides
from unet_ddp.checks.data_parts import DataParts
from unet_ddp.checks.mask_colours import share_colours
from unet_ddp.checks.mask_depths import find_mixture
from unet_ddp.checks.metadata import ScannedPair
from unet_ddp.checks.near_duplicates import confirm, find_copies
from unet_ddp.checks.numbers import find_numbers, warn_of_one_mask
from unet_ddp.checks.rare import advise_shares, find_rare
from unet_ddp.checks.rules import (
    check_rules,
    common_values,
    crop_size,
    measure_range,
)
from unet_ddp.checks.scales import warn_of_scales
from unet_ddp.checks.scan import scan
from unet_ddp.checks.summary import (
    describe_images,
    warn_of_classes,
    warn_of_images,
    warn_of_large_crops,
    warn_of_vanishing,
)
from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.dataset import PreparedData
from unet_ddp.data.groups import group_names
from unet_ddp.data.label_rules import MaskValues, choose_labels, warn_soft_edges
from unet_ddp.data.labels import Labels
from unet_ddp.data.matching import Report, find_pairs
from unet_ddp.data.pairs import Pair, Pairs, collect
from unet_ddp.data.readers.base import ImageFormat, OpenFile, Scene
from unet_ddp.data.readers.read import can_read, find_readers
from unet_ddp.data.readers.resize import scaled_size
from unet_ddp.data.splits import Split
from unet_ddp.errors import UserError, count_of, how_to_install
from unet_ddp.files import as_path
from unet_ddp.settings import called

HOME = Path("data")


@dataclass(frozen=True)
class CheckedData:
    """A data set of which pairs could be read."""

    table: Table
    format: ImageFormat
    values: MaskValues
    labels: Labels | None  # None if the mask values are a problem
    split: Split | None  # None if the split is a problem
    groups: dict[str, str]  # group of each pair, by name


def prepare_data(
    config: DataConfig,
    *,
    seed: int,
    parts: DataParts,
    labels: Labels | None = None,
    skip_bad: int = 0,
    moved: Collection[int] | None = None,
) -> PreparedData:
    """Find, check, label and split the data set; arguments as for `check_dataset`.

    Raises:
        UserError: it can't be trained on.
    """
    report = Report()
    data = check_dataset(
        config, report, seed=seed, parts=parts, labels=labels, skip_bad=skip_bad, moved=moved
    )
    assert data is not None and data.split is not None and data.labels is not None
    table = data.table
    training = table.find(data.split.training)
    used = training | table.find(data.split.validation)
    kinds = np.unique(table.columns["kind"][:][used])
    sizes = {scaled_size(*table.kinds[int(kind)].image.size, config.scale) for kind in kinds}
    are_alike = len(sizes) == 1 and not config.ground_resolution
    prepared = PreparedData(
        data.split,
        data.labels,
        data.format,
        crop_size=crop_size(config, table),
        smallest=scaled_size(*min(table.sizes), config.scale),
        notes=report.notes + [f"warning: {line}" for line in report.warnings],
        range=measure_range(table, training, data.format.channels),
        groups=data.groups,
        one_size=max(sizes) if are_alike else None,
        most_pixels=max(height * width for height, width in sizes),
        rare=find_rare(table, data.split),
    )
    return parts.adapt(config, table, prepared, seed)


def check_dataset(
    config: DataConfig,
    report: Report,
    *,
    seed: int,
    parts: DataParts,
    labels: Labels | None = None,
    skip_bad: int = 0,
    moved: Collection[int] | None = None,
) -> CheckedData | None:
    """Check the data set that `config` names; None if no pair can be read.

    All that is found goes into the report. The seed is the split's. `labels` and `moved` (see `Split`) come from an
    earlier run; None: the masks choose them. Up to `skip_bad` pairs that can't be read are left out.
    """
    training, validation = _find_sides(config, report, parts, labels)
    if not len(training) and not validation:
        report.add_problems([] if report.problems else ["no pairs of image and mask"])
        return None
    draw = partial(sides.split, config, training, validation, seed)
    split = report.attempt(draw) if training else None
    groups, scanned = dict[str, str](), list[ScannedPair]()
    table: Table | None = training.scanned.table if training.scanned is not None else None
    if table is None:
        groups = group_names(training, config.group_pattern) if split else {}
        scanned, errors = _scan(config, report, [*training, *(validation or [])], labels)
        split = sides.skip_unread(report, errors, split, skip_bad)
        if not scanned:
            return None
        table = Table.from_scan(scanned)
    form = check_rules(config, report, table)
    for reader in find_readers(pair.image for *_, pair in table.groups):
        table = report.attempt(partial(_check_kinds, reader, config, table, labels)) or table
    values = common_values(table, config.ignore_index)
    labels = labels or _choose_labels(config, report, table, values, parts=parts)
    split = split and sides.spread(split, training, table, labels, moved)
    split = split and sides.settle(config, report, split, training, scanned)
    data = CheckedData(table, form, values, labels, split, groups)
    _summarise(config, report, data)
    return data


def _check_kinds(
    reader: type[OpenFile], config: DataConfig, table: Table, labels: Labels | None
) -> Table:
    """Return the table of a set as this reader and known labels have it, or raise a UserError: it does not fit."""
    table = table.with_values_of(labels) if labels else table
    if issubclass(reader, Scene):
        table = reader.check_kinds(config, table)
    elif config.ground_resolution is not None:
        raise UserError(
            f"--ground-resolution: {table.groups[0][2].image} has no map coordinates with "
            f"a CRS; to read them needs {how_to_install('geo')}"
        )
    return table


def _scan(
    config: DataConfig, report: Report, pairs: Sequence[Pair], labels: Labels | None
) -> tuple[list[ScannedPair], dict[str, str]]:
    """Return what `scan` finds in the files of pairs, and add what their readers object to."""
    scanned, errors = scan(
        collect(pairs),
        nodata=config.nodata,
        channels=config.channels,
        planes=config.overlap,
        ignore=config.ignore_index,
    )
    for reader in find_readers(pair.image for pair, *_ in scanned):
        if issubclass(reader, Scene):
            report.add_problems(reader.check_pairs(scanned))
    return scanned if config.overlap else share_colours(scanned, config, labels), errors


def _find_sides(
    config: DataConfig, report: Report, parts: DataParts, labels: Labels | None
) -> tuple[Pairs, Pairs | None]:
    """Return the pairs, and the validation folder's pairs if there is one; `labels` if they are known already."""
    names = labels.names if labels else None
    find_all = partial(_find_pairs, config, report, parts, names or ())
    training, validation = report.attempt(find_all) or Pairs(), None
    if training.scanned is not None:
        divide = partial(training.scanned.divide, config)
        training, validation = report.attempt(divide) or (Pairs(), None)
    if config.val_images is None or config.val_masks is None:
        return training, validation
    places = as_path(config.val_images), as_path(config.val_masks)
    find = partial(find_pairs, *places, report, suffix=config.mask_suffix, config=config)
    find = partial(find, planes=_find_planes(config), names=training.class_names)
    pairs = report.attempt(find) or ()
    return training, collect(replace(pair, name=f"validation/{pair.name}") for pair in pairs)


def _find_pairs(
    config: DataConfig, report: Report, parts: DataParts, names: Sequence[str]
) -> Pairs:
    """Return all pairs; the demo set's if no places are given and the usual ones are empty."""
    given = (config.images, config.masks, config.pairs_file)
    images, masks, listed = (None if text is None else as_path(text) for text in given)
    if images is None and listed is None:
        images = HOME / "imgs"
        masks = HOME / "masks"
        if not (_contains_images(images) or _contains_images(masks)):
            demo = parts.write_demo(HOME / "demo")
            report.notes.append(
                f"no data: {images} and {masks} are empty; using the demo set in {demo}"
            )
            images = demo / "imgs"
            masks = demo / "masks"
    suffix, planes = config.mask_suffix, _find_planes(config)
    find = partial(find_pairs, images, masks, report, listed=listed, suffix=suffix)
    return find(planes=planes, names=names, config=config)


def used_folders(config: DataConfig, pairs: Pairs) -> dict[str, str]:
    """Return the folders of `pairs` by the names of their settings, if these name none; see `_find_pairs`."""
    if config.images is not None or config.pairs_file is not None:
        return {}
    demo = HOME / "demo"
    home = demo if demo in pairs[0].image.parents else HOME
    return {"images": str(home / "imgs"), "masks": str(home / "masks")}


def _find_planes(config: DataConfig) -> bool:
    """Return whether a folder for each class is found: with flags for other masks, it is not."""
    return config.overlap or not called(config, "label_rules")


def _contains_images(folder: Path) -> bool:
    return folder.is_dir() and any(
        can_read(path.suffix.lower()) or path.is_dir() for path in folder.iterdir()
    )


def _choose_labels(
    config: DataConfig, report: Report, table: Table, values: MaskValues, *, parts: DataParts
) -> Labels | None:
    """Return the classes of the masks; None if their values are a problem."""
    if problems := parts.check_planes(config, table, values, report):
        report.add_problems(problems)
        return None
    given = {config.mask_threshold, config.classes, config.class_names, values.lossy}
    if given == {None} and not called(config, "label_rules"):  # the values alone say it
        ignore = config.ignore_index
        problem = find_numbers(table, values, ignore, report)
        if problem is None and ignore is None:
            problem = find_mixture(table, values, config)
        if problem is not None:
            report.add_problems([problem])
            return None
    return report.attempt(lambda: choose_labels(values, config))


def _summarise(config: DataConfig, report: Report, data: CheckedData) -> None:
    """Describe the data set, and warn of what looks wrong."""
    table = data.table
    labels = data.labels
    split = data.split
    count = len(split.training) + len(split.validation) if split else len(table.pairs)
    copies = find_copies(table, split) if split else []
    report.notes.append(describe_images(table, data.format, count=count, scale=config.scale))
    if labels:
        report.notes.append(labels.describe())
        report.warnings += warn_soft_edges(data.values, labels)
    if split:
        sides = count_of(len(split.training), "image"), len(split.validation)
        report.notes.append(f"split: {split.how}; {sides[0]} to train on, {sides[1]} to validate")
        report.notes += advise_shares(config, table, split.training)
    if copies is None:
        report.notes.append("too many images to look for copies across the split")
    report.warnings += warn_of_images(table, confirm(copies, split) if split and copies else None)
    report.warnings += warn_of_scales(table, data.format.dtype)
    report.warnings += [] if config.overlap else warn_of_one_mask(table)
    report.warnings += warn_of_large_crops(table, config)
    if split and labels:
        warn = report.attempt(
            lambda: [
                *warn_of_classes(table, data.values, labels, split),
                *warn_of_vanishing(table, labels, config.scale),
            ]
        )
        report.warnings += warn or []


def check_classes(labels: Labels, weights: tuple[float, ...] | None) -> None:
    """Raise a UserError if the number of class weights is not that of the classes."""
    if weights is not None and len(weights) != labels.num_classes:
        raise UserError(
            f"--class-weights: {len(weights)} weights for {labels.num_classes} classes; give one "
            "for each"
        )
