"""Checks of masks whose values have a bit for each class: how much the classes overlap, and what lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from shlex import quote
from typing import cast

from unet_ddp.checks.table import Table
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.labels import Labels
from unet_ddp.data.masks import unpack_colour
from unet_ddp.data.matching import Report
from unet_ddp.data.names import is_hidden
from unet_ddp.data.pairs import Pairs
from unet_ddp.data.readers.bands import IGNORED_CODE
from unet_ddp.errors import UserError, join_some
from unet_ddp.extras.overlap.folders import (
    ClassFolderPairs,
    class_files,
    class_folders,
    split_marked,
)

_SHOWN = 3  # pairs of classes in a line


def check_planes(config: DataConfig, table: Table, values: MaskValues, report: Report) -> list[str]:
    """Return the problems of masks in a folder for each class; note how much classes overlap.

    Without --overlap, such masks are a problem, and others are not looked at.
    """
    roots = _find_roots(table)
    if not roots and not config.overlap:
        return []
    folders = {root: class_folders(root) for root in roots}
    first, *others = roots or [Path()]
    for other in others:
        if folders[other] != folders[first]:
            listed = [f"{root} ({', '.join(folders[root])})" for root in (first, other)]
            return [f"other folders in {listed[0]} than in {listed[1]}: give both the same classes"]
    shared = _Shared(values, config)
    if not config.overlap:
        return [f"{first}: a folder for each class, and {shared.advise(first)}"]
    report.notes += shared.describe()
    report.warnings += [*shared.warn_of_equal(), *_warn_of_bands(table)]
    if values.names and config.ignore_index is not None and shared.lost:
        report.warnings.append(
            f"--ignore-index {config.ignore_index}: no pixel of {', '.join(shared.lost)} is left; if "
            f"{config.ignore_index} is the class in its masks, leave the flag out, or save the class as 1"
        )
    if not shared.pixels:
        report.warnings.append(
            "no pixel is in two classes: without --overlap, exclusive classes usually learn better; "
            "python -m unet_ddp import makes masks of a folder for each class"
        )
    for root in roots:
        report.warnings += _find_empty(root)
    lacking = list(_find_lacking(table, folders[first])) if roots else []
    if lacking and config.all_masks:
        return [f"{line}; add them, or leave --all-masks out" for line in lacking]
    report.notes += [f"{line}: background there" for line in lacking]
    return []


def _find_roots(table: Table) -> list[Path]:
    """Return the folders that have a folder for each class."""
    if not isinstance(table.pairs, ClassFolderPairs):
        return []
    marked = (split_marked(pair.mask) for pair in table.pairs)
    return list(dict.fromkeys(each[0] for each in marked if each))


class _Shared:
    """The pixels that are in two classes or more."""

    def __init__(self, values: MaskValues, config: DataConfig) -> None:
        ignore = None if values.names else config.ignore_index  # in codes of folders, it is a bit
        kept = {v: n for v, n in values.counts.items() if v != ignore}
        codes = {value: code_of(value, rgb=values.rgb) for value in kept}
        names = list(values.names or config.class_names or ())
        names += [str(k + 1) for k in range(len(names), 16)]
        self.labelled = self.pixels = 0
        found = 0
        pairs: Counter[tuple[int, int]] = Counter()
        most: dict[tuple[int, int], int] = {}  # value of most pixels
        for value, code in codes.items():
            found |= code
            bits = [k for k in range(16) if code >> k & 1]
            self.labelled += kept[value] if bits else 0
            self.pixels += kept[value] if len(bits) > 1 else 0
            for pair in combinations(bits, 2):
                pairs[pair] += kept[value]
                most[pair] = max(most.get(pair, value), value, key=kept.__getitem__)
        self._equal: dict[tuple[int, ...], list[str]] = {}  # classes by the values that have them
        for k in (k for k in range(16) if found >> k & 1):
            having = tuple(value for value, code in codes.items() if code >> k & 1)
            self._equal.setdefault(having, []).append(names[k])
        self.lost = [name for k, name in enumerate(values.names) if not found >> k & 1]
        self._pairs = [
            (
                f"{names[one]} and {names[other]} {self._show(count)}",
                values.examples[most[one, other]],
            )
            for (one, other), count in pairs.most_common(_SHOWN)
        ]

    def _show(self, pixels: int) -> str:
        return f"{100 * pixels / self.labelled:.1f} %"

    def advise(self, root: Path) -> str:
        """Return what to do about a folder for each class, without --overlap."""
        if not self.pixels:
            return (
                f"no pixel is in two classes: make masks of them with python -m unet_ddp import {quote(str(root))}, "
                "or use --overlap"
            )
        share, file = self._pairs[0]
        return (
            f"{self._show(self.pixels)} of the labelled pixels are in two or more ({share}, e.g. "
            f"{file}): use --overlap"
        )

    def warn_of_equal(self) -> Iterator[str]:
        """Yield a line about classes that have the same pixels in all masks."""
        for same in self._equal.values():
            if len(same) > 1:
                yield f"the classes {', '.join(same)} have the same pixels in all masks; check that each mask is of its own class"

    def describe(self) -> Iterator[str]:
        """Yield a line with the pairs of classes that share most pixels."""
        if self.pixels:
            shown = join_some([f"{share} (e.g. {file})" for share, file in self._pairs], _SHOWN)
            share = self._show(self.pixels)
            yield f"{share} of the labelled pixels are in two or more classes: {shown}"


def code_of(value: int, *, rgb: bool) -> int:
    """Return the bits of a mask's value; an ignored pixel has none."""
    if rgb:
        return sum((band > 0) << k for k, band in enumerate(unpack_colour(value)))
    return 0 if value < 0 or value & IGNORED_CODE else value & (IGNORED_CODE - 1)


def _warn_of_bands(table: Table) -> Iterator[str]:
    """Yield a line if masks have different numbers of bands or pages, each of which is a class."""
    examples: dict[int, Path] = {}
    for kind, _, pair in table.groups:
        examples.setdefault(1 if kind.mask.palette else kind.mask.channels, pair.mask)
    if len(examples) > 1:
        (fewest, one), *_, (most, other) = sorted(examples.items())
        shown = "1 band or page" if fewest == 1 else f"{fewest} bands or pages"
        yield (
            f"{one} has {shown}, {other} has {most}: each is a class by its place; save a "
            "black one for each class that a mask lacks"
        )


def _find_lacking(table: Table, folders: Sequence[str]) -> Iterator[str]:
    """Yield a line for each class of which images lack a mask."""
    masks = [pair.mask for pair in table.pairs if split_marked(pair.mask)]
    examples: dict[str, Path] = {}
    counts: Counter[str] = Counter()
    for mask in masks:
        for name, file in class_files(mask).items():
            if file is None:
                counts[name] += 1
                examples.setdefault(name, mask)
    for name in folders:
        if counts[name]:
            root, rest = cast(tuple[Path, Path], split_marked(examples[name]))
            yield (
                f"{counts[name]} of {len(masks)} images lack a file in {root / name}, e.g. "
                f"{rest.with_suffix('')}"
            )


def _find_empty(root: Path) -> list[str]:
    """Return a line for each folder without masks."""
    known = class_folders(root)
    found = sorted(path for path in root.iterdir() if path.is_dir() and path.name not in known)
    return [
        f"{path}: contains no masks, so it is no class"
        for path in found
        if not is_hidden(path.name)
    ]


def check_packed_classes(pairs: Pairs, labels: Labels, place: str) -> None:
    """Refuse a pack whose bits are other classes; of folders, `OverlapLabels.to_ids` finds them by name.

    Raises:
        UserError: they are; it names the pack's `place`.
    """
    found = pairs.class_names
    if not found or isinstance(pairs, ClassFolderPairs):
        return
    if labels.may_overlap and labels.names is None and len(found) == labels.num_classes:
        return
    if not labels.may_overlap or labels.names != found:
        raise UserError(
            f"{place}: the classes of its masks are {', '.join(found)}, those of the network "
            f"{', '.join(labels.class_names)}: pack masks of these classes in this order, or use --images and "
            "--masks with the folders"
        )
