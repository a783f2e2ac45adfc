"""Which mask belongs to which image: by their names in two folders, or by a list."""

from __future__ import annotations

import csv
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from unet_ddp.data.formats.header import SUFFIXES
from unet_ddp.errors import UserError

_SIDES = {
    "train": "training", "training": "training",
    "val": "validation", "valid": "validation", "validation": "validation",
    "test": "left out", "": None,
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    name: str
    """The image's path below its folder, without the ending: what it is called everywhere."""
    image: Path
    mask: Path
    group: str | None = None
    """What it belongs to, where a list says so."""
    side: str | None = None
    """training, validation or left out, where a list says so."""


@dataclass(frozen=True)
class Matches:
    """What was found in two folders or a list."""

    pairs: list[Pair]
    problems: list[str] = field(default_factory=list)
    """Images without one mask, and what else makes the set unfit, a line each."""
    orphans: list[Path] = field(default_factory=list)
    """Masks without an image; they do no harm."""


def find_pairs(images: Path, masks: Path, *, suffix: str | None = None) -> tuple[list[Pair], str]:
    """Every image in `images` with the mask of its name in `masks`, sorted by name.

    Returns:
        The pairs, and a line about masks without an image (empty when there are none).

    Raises:
        UserError: no images, images without a mask, or several files for one; all of them
            are told together.
    """
    found = match(images, masks, suffix=suffix)
    refuse(found.problems)
    return found.pairs, note_orphans(found)


def note_orphans(found: Matches) -> str:
    """A line about masks without an image; empty when there are none."""
    many = len(found.orphans)
    return f"{many} masks have no image, as {found.orphans[0]}" if many else ""


def refuse(problems: list[str], most: int = 3) -> None:
    """Raise UserError with the first `most` of `problems`, if there are any."""
    if problems:
        more = (
            f"; and {len(problems) - most} more like these, which 'python -m unet_ddp doctor' lists"
            if len(problems) > most
            else ""
        )
        raise UserError("; ".join(problems[:most]) + more)


def match(images: Path, masks: Path, *, suffix: str | None = None) -> Matches:
    """Every image in `images` with the mask of its name in `masks`, sorted by name.

    Sub-folders are searched; hidden files and other than image files are passed over. Both
    may be one folder, where masks' names have something added.

    Args:
        suffix: what a mask's name has after its image's name; found by itself when None.

    Raises:
        UserError: a folder that is not there, can't be read or holds no images.
    """
    found_images, found_masks = _files_by_name(images), _files_by_name(masks)
    if not found_images:
        raise UserError(f"{images}: no images in it ({', '.join(sorted(SUFFIXES))})")
    if not found_masks:
        raise UserError(f"{masks}: no masks in it ({', '.join(sorted(SUFFIXES))})")
    one_folder = images.resolve() == masks.resolve()
    if suffix is None:
        suffix = _find_suffix(found_images, found_masks, whole=not one_folder)
    if one_folder and suffix:
        found_images = {n: files for n, files in found_images.items() if not n.endswith(suffix)}
    pairs, problems = [], []
    for name in sorted(found_images):
        files, candidates = found_images[name], found_masks.get(name + suffix, [])
        if len(files) > 1:
            problems.append(f"two images of one name: {_listed(files)}; keep one of them")
        elif len(candidates) > 1:
            problems.append(f"two masks for {files[0]}: {_listed(candidates)}; keep one of them")
        elif not candidates:
            problems.append(
                f"no mask for {files[0]}: looked for {masks}/{name}{suffix}.*; name masks as their "
                "images, or remove the image"
            )
        else:
            pairs.append(Pair(name, Path(files[0]), Path(candidates[0])))
    wanted = {name + suffix for name in found_images}
    orphans = [Path(found_masks[name][0]) for name in sorted(found_masks.keys() - wanted)]
    if one_folder and suffix:
        orphans = [path for path in orphans if path.stem.endswith(suffix)]
    return Matches(pairs, problems, orphans)


def _files_by_name(folder: Path) -> dict[str, list[str]]:
    """Paths of image files below `folder` by relative path without ending."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {what}")
    files: dict[str, list[str]] = defaultdict(list)
    seen = {os.path.realpath(folder)}  # links may lead in a circle
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_cannot_list):
        inner = {name: os.path.realpath(os.path.join(parent, name)) for name in sorted(folders)}
        folders[:] = [n for n, real in inner.items() if real not in seen and not n.startswith(".")]
        seen.update(inner.values())
        relative = os.path.relpath(parent, folder)
        prefix = "" if relative == "." else relative.replace(os.sep, "/") + "/"
        for name in sorted(names):  # text, not paths: a hundred thousand files take a second
            stem, dot, ending = name.rpartition(".")
            if stem and name[0] != "." and (dot + ending).lower() in SUFFIXES:
                files[prefix + stem].append(f"{parent}/{name}")
    return files


def _cannot_list(error: OSError) -> None:
    raise UserError(f"{error.filename}: {error.strerror or error}; make it readable")


def _find_suffix(images: Iterable[str], masks: Iterable[str], *, whole: bool) -> str:
    """What most masks' names have after an image's name: often nothing, or _mask.

    An image's name may be the start of another's (1 and 10): the longest one counts.

    Args:
        whole: whether nothing is an answer, which it is not where both are in one folder.
    """
    names = set(images)
    seen: Counter[str] = Counter()
    for mask in masks:
        for end in range(len(mask) if whole else len(mask) - 1, 0, -1):
            if mask[:end] in names:
                seen[mask[end:]] += 1
                break
    return max(seen, key=lambda suffix: (seen[suffix], -len(suffix))) if seen else ""


def _listed(files: list[str]) -> str:
    return " and ".join(files[:3])


# -- lists ---------------------------------------------------------------------------------


def read_list(path: Path) -> Matches:
    """The pairs of a CSV file with the columns image, mask and perhaps group and split.

    Paths are relative to the file's own folder. A row's split is training (train), validation
    (val) or test, which is left out.

    Raises:
        UserError: no such file, or no such columns.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--list {path}: {reason}; give a CSV file") from None
    if not rows or not {"image", "mask"} <= rows[0].keys():
        raise UserError(
            f"--list {path}: its first line must name the columns image,mask and perhaps "
            "group,split, and rows must follow"
        )
    pairs: dict[str, Pair] = {}
    problems = []
    for number, row in enumerate(rows, start=2):
        pair, problem = _listed_pair(path, number, row)
        if pair is not None and pair.name in pairs:
            other = pairs[pair.name].image
            problem = (
                f"{path}, line {number}: {pair.image} is in the list twice"
                if pair.image == other
                else f"{path}, line {number}: {pair.image} has the name of {other}"
            )
        if problem:
            problems.append(problem)
        elif pair is not None:
            pairs[pair.name] = pair
    if any(pair.side for pair in pairs.values()) and not all(p.side for p in pairs.values()):
        problems.append(f"{path}: some rows name their split and some do not; fill the column")
    return Matches([pairs[name] for name in sorted(pairs)], problems)


def _listed_pair(path: Path, number: int, row: dict[str, str | None]) -> tuple[Pair | None, str]:
    """The pair of a row, or what is wrong with it."""
    image, mask = (row["image"] or "").strip(), (row["mask"] or "").strip()
    side = (row.get("split") or "").strip().lower()
    if not image or not mask:
        return None, f"{path}, line {number}: image or mask is missing"
    if side not in _SIDES:
        return None, f"{path}, line {number}: split {side!r}; it is training, validation or test"
    image_path, mask_path = path.parent / image, path.parent / mask
    lost = [place for place in (image_path, mask_path) if not place.is_file()]
    if lost:
        return None, f"{path}, line {number}: {lost[0]}: no such file"
    group = row.get("group") or None  # as it is: split.csv quotes it, blanks and all
    name = str(Path(image).with_suffix(""))
    return Pair(name, image_path, mask_path, group, _SIDES[side]), ""
