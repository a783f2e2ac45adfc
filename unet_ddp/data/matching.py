"""Pairs of image and mask, found by their names in two folders, or by a list."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from unet_ddp.data.affixes import divide, find_suffix
from unet_ddp.data.csv_cells import read_rows
from unet_ddp.data.list_warnings import warn_of_list
from unet_ddp.data.listing import files_by_name, find_predictions
from unet_ddp.data.names import copies_of, file_key, find_spelling, without_compound
from unet_ddp.data.other_files import advise_on_others, note_others
from unet_ddp.data.pairs import CLASSES_MARK, DataPaths, Pair, Pairs, Stamp, collect, list_kinds
from unet_ddp.data.suffixes import Files
from unet_ddp.errors import UserError, count_of, shorten
from unet_ddp.files import as_path, explain_absence, is_address
from unet_ddp.storage import real_file

if TYPE_CHECKING:
    from unet_ddp.config import DataConfig

Result = TypeVar("Result")
ListMasks = Callable[[Path, dict[str, Stamp]], Files]
"""Function of the masks' folder and stamps to note: returns the masks by name."""
Merge = Callable[[Path, Files, Files, dict[str, Stamp], str | None], Files]
"""Function of the masks' folder, the images, the masks, stamps and suffix: returns the masks by name."""

_SIDES = {
    "train": "training", "training": "training",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "left out", "": None,
}  # fmt: skip
_NAMES = (
    "name masks like their images, pair them in a --list, add an empty mask, or remove the image"
)
_CASE = "a mask's name has other upper and lower case: rename one, or pair them in a --list"
_CLASSES = "if its folders are classes, make masks of them with python -m unet_ddp import; --overlap needs at least two"
_COLUMNS = ("image", "mask", "group", "split", "source")
_SHOWN = 3  # problems in one error; doctor --all lists all


@dataclass
class Report:
    """Problems, warnings and notes about a data set."""

    collects: bool = False  # all problems, rather than raise the first
    problems: list[str] = field(default_factory=list)  # what makes it unfit to train on
    warnings: list[str] = field(default_factory=list)  # what is likely a mistake
    notes: list[str] = field(default_factory=list)

    def add_problems(self, problems: list[str]) -> None:
        """Add problems; raise a UserError with the first if there are any and they are not collected."""
        problems = [*dict.fromkeys(problems)]  # files may share one, as that of their cache
        self.problems = [*dict.fromkeys(self.problems + problems)]
        if not problems or self.collects:
            return
        shown = "; ".join(problems[:_SHOWN])
        if (rest := len(problems) - _SHOWN) > 0:
            shown += f"; and {rest} more, listed by 'python -m unet_ddp doctor --all'"
        raise UserError(shown)

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`; add its UserError as a problem and return None."""
        try:
            return work()
        except UserError as error:
            self.add_problems([str(error)])
            return None


def find_pairs(
    images: Path | None = None,
    masks: Path | None = None,
    report: Report | None = None,
    *,
    listed: Path | None = None,
    suffix: str | None = None,
    planes: bool = False,
    names: Sequence[str] = (),
    config: DataConfig | None = None,
) -> Pairs:
    """Return the pairs of two folders, a pack (`images` alone) or a list, sorted by name; see `DataPaths`.

    The first kind of data set that claims the paths finds the pairs; other images are problems.
    """
    paths = DataPaths(images, masks, listed, suffix, planes, names, config)
    kind = next((kind for kind in list_kinds() if kind.claims(paths)), None)
    assert kind is not None, paths  # the settings say where the images are
    return kind.find(paths, report or Report())


def match_folders(
    paths: DataPaths,
    report: Report,
    merge: Merge | None = None,
    list_masks: ListMasks = files_by_name,
) -> Pairs:
    """Return every image in a folder with the mask of its name in another.

    Sub-folders are searched; hidden files and files of other types are skipped. Both may be the same folder,
    see `divide`. `merge` may replace the masks that `list_masks` found.
    """
    images, masks, suffix = paths.images, paths.masks, paths.suffix
    assert images is not None and masks is not None  # `Folders` claims these
    _check_places(images, masks)
    stamps, others = dict[str, Stamp](), Files()
    found_images = dict(readable := files_by_name(images, stamps, others=others))
    found_masks = list_masks(masks, stamps)
    found_images = _leave_out(masks, found_images, images)
    if images.resolve() != masks.resolve():
        found_images = _without_predictions(found_images, report)
    if not found_images:
        raise UserError(f"{images}: contains no images {advise_on_others(images)}")
    if merge is not None:
        found_masks = merge(masks, found_images, found_masks, stamps, suffix)
    if not found_masks:
        raise UserError(f"{masks}: contains no masks {advise_on_others(masks)}")
    differ = ""
    if merge is None and images.resolve() == masks.resolve():
        found_masks, suffix, notes = divide(images, found_images, suffix)
    else:
        found_masks, suffix, notes = find_suffix(found_images, found_masks, suffix)
        differ = "".join(notes)
    report.notes += [*notes, *note_others(images, _leave_out(masks, others, images), readable)]
    pairs, problems = _match_names(
        found_images, found_masks, stamps, folder=masks, suffix=suffix, differ=differ
    )
    report.add_problems(problems)
    report.notes += _note_unused(found_masks)
    report.warnings += _find_copies(pairs)
    return collect(pairs)


def _check_places(images: Path, masks: Path) -> None:
    for place in (images, masks):
        if not (is_address(images) or is_address(masks) or os.path.exists(place)):
            raise explain_absence(place, "not found; name the folders by --images and --masks")


def _note_unused(masks: Files) -> list[str]:
    if not masks:
        return []
    return [f"{count_of(len(masks), 'mask')} without image, e.g. {masks[min(masks)][0]}"]


def _without_predictions(images: Files, report: Report) -> Files:
    """Return images without what predict.py wrote beside them, and note it."""
    predicted = find_predictions(images)
    if predicted:
        first = images[min(predicted)][0]
        report.notes.append(f"left out: {count_of(len(predicted), 'prediction')}, e.g. {first}")
    return {name: files for name, files in images.items() if name not in predicted}


def _leave_out(folder: Path, images: Files, parent: Path) -> Files:
    """Return the images below `parent` that are not in `folder`, which may be below it: masks are no images."""
    spelled = (folder.absolute(), parent.absolute()), (folder.resolve(), parent.resolve())
    for inside, outside in spelled:  # it may be a link
        if outside in inside.parents:
            start = file_key(f"{inside.relative_to(outside).as_posix()}/")
            return {name: files for name, files in images.items() if not name.startswith(start)}
    return images


def _find_copies(pairs: Sequence[Pair]) -> list[str]:
    """Return a warning about images that are copies of others by their names and sizes."""
    images = {pair.name: pair.image for pair in pairs}
    copies = [
        (images[name], images[original])
        for name, original in sorted(copies_of(images).items())
        if not is_address(images[name])
        and os.path.getsize(images[name]) == os.path.getsize(images[original])
    ]
    if not copies:
        return []
    first = " is one of ".join(map(str, copies[0]))
    return [f"{count_of(len(copies), 'image')} named like a copy, e.g. {first}; remove copies"]


def _match_names(
    images: Mapping[str, list[str]],
    masks: dict[str, list[str]],
    stamps: Mapping[str, Stamp],
    *,
    folder: Path,
    suffix: str,
    differ: str,
) -> tuple[list[Pair], list[str]]:
    """Return the pairs of files by name, and a line for each other image; remove their masks.

    `folder` is that of the masks, `suffix` what their names add to the images', `differ` how they differ otherwise.
    """
    pairs = []
    problems = []
    folded = {name.casefold() for name in masks}
    names_in_folders = {name.partition("/")[2] for name in masks}
    for name, files in sorted(images.items()):
        image = files[0]
        candidates = masks.pop(name + suffix, []) or masks.pop(without_compound(name) + suffix, [])
        if len(files) > 1:
            several = " and ".join(files[:3])
            problems.append(f"two images of one name: {several}; keep one of them")
        elif len(candidates) > 1:
            several = " and ".join(candidates[:3])
            problems.append(f"two masks for {image}: {several}; keep one of them")
        elif not candidates:
            hint = _CLASSES if name in names_in_folders else _NAMES
            if (name + suffix).casefold() in folded:
                hint = _CASE
            line = f"no mask for {image}: looked for {folder}/{name}{suffix}.*; {hint}"
            if differ:
                line = f"no mask for {image}, as others have; {differ}: add such a mask, or remove the image"
            problems.append(line)
        else:
            mask = candidates[0]
            known = stamps.get(image), stamps.get(mask)
            pairs.append(Pair(name, as_path(image), as_path(mask), stamps=known))
    return pairs, problems


# -- lists ---------------------------------------------------------------------------------


def read_list(path: Path, report: Report | None = None) -> Pairs:
    """Read pairs from a CSV file with the columns image, mask and optionally group, split and source.

    Paths are relative to the file's folder, or addresses. A row's split is training (train),
    validation (val) or test, which is left out. Rows that name no pair are problems.
    """
    (_, first), *rows = read_rows(path, "--list", errors="surrogateescape") or [(0, [])]
    header = [cell.strip().lower() for cell in first]
    if not rows or not {*_COLUMNS[:2]} <= {*header}:
        top, rest = shorten(",".join(first)), count_of(len(rows), "row")
        said = f"the first line is {top}, {rest} follow" if first else "is empty"
        raise UserError(
            f"--list {path}: {said}; the first line must name the columns image,mask and optionally "
            "group,split,source, and rows must follow"
        )
    report = report or Report()
    if unused := [shorten(cell) for cell in header if cell and cell not in _COLUMNS]:
        report.notes.append(f"columns of {path} that are not used: {', '.join(unused)}")
    pairs: dict[str, Pair] = {}
    problems = []
    for line, cells in rows:
        try:
            pair = _listed_pair(path.parent, dict(zip(header, cells, strict=False)))
        except UserError as error:
            problems.append(f"{path}, line {line}: {error}")
            continue
        other = pairs.setdefault(pair.name, pair)
        if other is not pair:
            twice = f"has the name of {other.image}"
            if other.image == pair.image:
                twice = "is listed twice"
            problems.append(f"{path}, line {line}: {pair.image} {twice}")
    sides = {pair.side for pair in pairs.values()}
    if None in sides and len(sides) > 1:
        problems.append(f"{path}: some rows name their split and some do not; fill the column")
    report.warnings += warn_of_list(path, [c for c in header if c in _COLUMNS], pairs.values())
    found = collect(pairs[name] for name in sorted(pairs)).find(problems)
    report.add_problems(problems)
    return found


def _listed_pair(folder: Path, row: dict[str, str]) -> Pair:
    """Return the pair of a row, whose paths are relative to `folder`."""
    image = row.get("image", "").strip()
    mask = row.get("mask", "").strip()
    side = row.get("split", "").strip().lower()
    if not image or not mask:
        raise UserError("image or mask is missing")
    if side not in _SIDES:
        raise UserError(f"split {side!r}; it is training, validation or test")
    if not is_address(folder):
        image, mask = find_spelling(folder, image), find_spelling(folder, mask)
    files = _find_file(folder, image), _find_file(folder, mask)
    name = file_key(str(as_path(image).with_suffix("")))
    group = row.get("group") or None  # unstripped: its blanks count
    return Pair(name, *files, group, _SIDES[side], source=row.get("source", "").strip() or None)


def _find_file(folder: Path, name: str) -> Path:
    """Return the file at a path that is relative to `folder`, or at an address."""
    path = as_path(name if "://" in name else str(folder / name))
    is_elsewhere = is_address(path) or CLASSES_MARK in path.parts  # `Pairs.find` looks for these
    if not is_elsewhere and not os.path.isfile(real_file(path)):  # pathlib's may raise
        reason = "is not a file" if os.path.exists(path) else "not found"
        if "\\" in name:
            reason += ", neither with / in place of \\; use paths that are relative to the list"
        raise explain_absence(path, reason)
    return path
