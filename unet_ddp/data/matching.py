"""Pairs of image and mask, found by their names in two folders, or by a list."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from unet_ddp.data.csv_cells import read_rows
from unet_ddp.data.pairs import CLASSES_MARK, Pair, Pairs, Stamp, collect
from unet_ddp.data.readers.microscopes import advise_export
from unet_ddp.data.readers.read import can_read, list_suffixes
from unet_ddp.errors import UserError, count_of
from unet_ddp.files import as_path, is_address
from unet_ddp.plugins import find

Result = TypeVar("Result")

_SIDES = {
    "train": "training", "training": "training",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "left out", "": None,
}  # fmt: skip
_NAMES = "name masks like their images, or remove the image"
_OTHERS = "export others as TIFF or PNG; python -m unet_ddp import makes masks of annotations"
_CLASSES = "if its folders are classes, make masks of them with python -m unet_ddp import; --overlap needs at least two"
_SHOWN = 3  # problems in one error; the doctor lists all


@dataclass
class Report:
    """Problems, warnings and notes about a data set."""

    collects: bool = False  # all problems, rather than raise the first
    problems: list[str] = field(default_factory=list)  # what makes it unfit to train on
    warnings: list[str] = field(default_factory=list)  # what is likely a mistake
    notes: list[str] = field(default_factory=list)

    def add_problems(self, problems: list[str]) -> None:
        """Add problems; raise a UserError with the first if there are any and they are not collected."""
        self.problems += problems
        if problems and not self.collects:
            more = len(problems) - _SHOWN
            rest = f"; and {more} more, listed by 'python -m unet_ddp doctor'" if more > 0 else ""
            raise UserError("; ".join(problems[:_SHOWN]) + rest)

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`; add its UserError as a problem and return None."""
        try:
            return work()
        except UserError as error:
            self.add_problems([str(error)])
            return None


def mask_size_message(mask: Path, mask_size: tuple[int, int], image_size: tuple[int, int]) -> str:
    """Return the message for a mask whose (height, width) is not that of its image."""
    (height, width), (image_height, image_width) = mask_size, image_size
    if mask_size == image_size[::-1]:
        advice = "one of them is rotated by 90 degrees"
    else:
        advice = "resize one, or use --resize-masks"
    return f"{mask} is {width}x{height}, its image {image_width}x{image_height}; {advice}"


def find_pairs(
    images: Path,
    masks: Path,
    report: Report | None = None,
    *,
    suffix: str | None = None,
    planes: bool = False,
) -> Pairs:
    """Return every image in `images` with the mask of its name in `masks`, sorted by name.

    Sub-folders are searched; hidden files and files of other types are skipped. Both may be the
    same folder if the masks' names have a `suffix`, detected if None. With `planes`, the masks may be in a
    folder for each class. Other images are problems.
    """
    report, stamps = report or Report(), dict[str, Stamp]()
    found_images, found_masks = files_by_name(images, stamps), files_by_name(masks, stamps)
    for folder, found, kind in ((images, found_images, "images"), (masks, found_masks, "masks")):
        if not found:
            read = ", ".join(list_suffixes())
            raise UserError(f"{folder}: contains no {kind} ({read}); {_advise_on_others(folder)}")
    if planes:
        merge = find("extras", "merge_class_masks")
        found_masks = merge(images, masks, found_images, found_masks, stamps, suffix)
    one_folder = images.resolve() == masks.resolve()
    if suffix is None:
        suffix = detect_suffix(found_images, found_masks, may_be_empty=not one_folder)
    if one_folder and suffix:
        found_masks = {n: files for n, files in found_images.items() if n.endswith(suffix)}
        found_images = {n: files for n, files in found_images.items() if n not in found_masks}
    pairs, problems = _match_names(found_images, found_masks, (masks, suffix), stamps)
    report.add_problems(problems)
    if found_masks:
        first = found_masks[min(found_masks)][0]
        report.notes.append(f"{count_of(len(found_masks), 'mask')} without image, e.g. {first}")
    return collect(pairs)


def _match_names(
    images: Mapping[str, list[str]],
    masks: dict[str, list[str]],
    place: tuple[Path, str],
    stamps: Mapping[str, Stamp],
) -> tuple[list[Pair], list[str]]:
    """Return the pairs of files by name, and a line for each other image; remove their masks.

    `place` is the masks' folder, and the suffix of their names.
    """
    pairs, problems, (folder, suffix) = [], [], place
    deeper = {name.partition("/")[2] for name in masks}
    for name, files in sorted(images.items()):
        candidates = masks.pop(name + suffix, [])
        if len(files) == len(candidates) == 1:
            known = stamps.get(files[0]), stamps.get(candidates[0])
            pairs.append(Pair(name, as_path(files[0]), as_path(candidates[0]), stamps=known))
        elif len(files) > 1:
            problems.append(f"two images of one name: {' and '.join(files[:3])}; keep one of them")
        elif candidates:
            several = " and ".join(candidates[:3])
            problems.append(f"two masks for {files[0]}: {several}; keep one of them")
        else:
            hint = _CLASSES if name in deeper else _NAMES
            problems.append(f"no mask for {files[0]}: looked for {folder}/{name}{suffix}.*; {hint}")
    return pairs, problems


def files_by_name(folder: Path, stamps: dict[str, Stamp]) -> dict[str, list[str]]:
    """Return the image files below `folder`, by relative path without suffix.

    Those at an address add their `stamps`.
    """
    if is_address(folder):
        remote: dict[str, list[str]] = find("extras", "remote_pairs").files_by_name(folder, stamps)
        return remote
    if not os.path.isdir(folder):  # pathlib's raises for names that none can have
        is_file = os.path.exists(folder)
        raise UserError(f"{folder}: {'is a file, not a folder' if is_file else 'not found'}")
    files: dict[str, list[str]] = defaultdict(list)
    seen = {os.path.realpath(folder)}  # links may form a circle
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_cannot_list):
        inner = {name: os.path.realpath(os.path.join(parent, name)) for name in sorted(folders)}
        folders[:] = [n for n, real in inner.items() if real not in seen and not n.startswith(".")]
        seen.update(inner.values())
        relative = os.path.relpath(parent, folder)
        prefix = "" if relative == "." else relative.replace(os.sep, "/") + "/"
        for name in sorted(names):  # text, not paths: a hundred thousand files take a second
            stem, dot, suffix = name.rpartition(".")
            if stem and name[0] != "." and can_read((dot + suffix).lower()):
                files[prefix + stem].append(f"{parent}/{name}")
    return files


def _advise_on_others(folder: Path) -> str:
    """Return what to do with the files below a folder, none of which can be read."""
    below = [] if is_address(folder) else os.walk(folder)
    return advise_export((name for *_, names in below for name in names), _OTHERS)


def _cannot_list(error: OSError) -> None:
    raise UserError(f"{error.filename}: {error.strerror or error}; make it readable")


def detect_suffix(images: Iterable[str], masks: Iterable[str], *, may_be_empty: bool) -> str:
    """Return what most masks add to an image's name: often nothing, or _mask.

    An image's name may be the start of another's (1 and 10): the longest one counts.
    """
    names = set(images)
    seen: Counter[str] = Counter()
    for mask in masks:
        for end in range(len(mask) if may_be_empty else len(mask) - 1, 0, -1):
            if mask[:end] in names:
                seen[mask[end:]] += 1
                break
    return max(seen, key=lambda suffix: (seen[suffix], -len(suffix))) if seen else ""


# -- lists ---------------------------------------------------------------------------------


def read_list(path: Path, report: Report | None = None) -> Pairs:
    """Read pairs from a CSV file with the columns image, mask and optionally group and split.

    Paths are relative to the file's folder, or addresses. A row's split is training (train),
    validation (val) or test, which is left out. Rows that name no pair are problems.
    """
    rows = read_rows(path, "--list", errors="surrogateescape")
    header = rows[0][1] if rows else []
    if len(rows) < 2 or not {"image", "mask"} <= {*header}:
        raise UserError(
            f"--list {path}: the first line must name the columns image,mask and optionally "
            "group,split, and rows must follow"
        )
    pairs: dict[str, Pair] = {}
    problems = []
    for line, cells in rows[1:]:
        try:
            pair = _listed_pair(path.parent, dict(zip(header, cells, strict=False)))
            if pair.name in pairs:
                other = pairs[pair.name].image
                twice = "is listed twice" if pair.image == other else f"has the name of {other}"
                raise UserError(f"{pair.image} {twice}")
        except UserError as error:
            problems.append(f"{path}, line {line}: {error}")
        else:
            pairs[pair.name] = pair
    if len({pair.side is None for pair in pairs.values()}) > 1:
        problems.append(f"{path}: some rows name their split and some do not; fill the column")
    found = collect(pairs[name] for name in sorted(pairs)).find(problems)
    (report or Report()).add_problems(problems)
    return found


def _listed_pair(folder: Path, row: dict[str, str]) -> Pair:
    """Return the pair of a row, whose paths are relative to `folder`."""
    image, mask = row.get("image", "").strip(), row.get("mask", "").strip()
    side = row.get("split", "").strip().lower()
    if not image or not mask:
        raise UserError("image or mask is missing")
    if side not in _SIDES:
        raise UserError(f"split {side!r}; it is training, validation or test")
    paths = [as_path(name if "://" in name else str(folder / name)) for name in (image, mask)]
    for path in paths:
        if is_address(path) or CLASSES_MARK in path.parts:  # `Pairs.find` looks for these
            continue
        if not os.path.isfile(path):  # pathlib's may raise
            reason = "is not a file" if os.path.exists(path) else "not found"
            raise UserError(f"{path}: {reason}")
    group = row.get("group") or None  # unstripped: its blanks count
    name = str(as_path(image).with_suffix(""))
    return Pair(name, paths[0], paths[1], group, _SIDES[side])
