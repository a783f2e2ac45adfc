"""Which mask belongs to which image, and which pairs are kept for validation.

Both are functions of the names alone (and of the seed), not of the order in which the
file system lists them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from unet_ddp.data.reading import SUFFIXES
from unet_ddp.errors import UserError


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    name: str
    """The image's path below its folder, without the ending: what it is called everywhere."""
    image: Path
    mask: Path


@dataclass(frozen=True)
class Split:
    """The pairs to train on and those to score on, disjoint, each in the order of names."""

    training: list[Pair]
    validation: list[Pair]
    how: str
    """One line for the user: by what they were split."""


# -- pairing -------------------------------------------------------------------------------


def find_pairs(images: Path, masks: Path, *, suffix: str | None = None) -> tuple[list[Pair], str]:
    """Every image in `images` with the mask of its name in `masks`, sorted by name.

    Sub-folders are searched; hidden files and other than image files are passed over.

    Args:
        suffix: what a mask's name has after its image's name; found by itself when None.

    Returns:
        The pairs, and a line about masks without an image (empty when there are none).

    Raises:
        UserError: no images, images without a mask, or several files for one; all of them
            are told together.
    """
    found_images, found_masks = _files_by_name(images), _files_by_name(masks)
    if not found_images:
        raise UserError(f"{images}: no images in it ({', '.join(sorted(SUFFIXES))})")
    if not found_masks:
        raise UserError(f"{masks}: no masks in it ({', '.join(sorted(SUFFIXES))})")
    if suffix is None:
        suffix = _find_suffix(found_images, found_masks)
    problems = []
    for name, files in found_images.items():
        candidates = found_masks.get(name + suffix, [])
        if len(files) > 1:
            problems.append(f"two images of one name: {_listed(files)}")
        elif len(candidates) > 1:
            problems.append(f"two masks for {files[0]}: {_listed(candidates)}")
        elif not candidates:
            problems.append(f"no mask for {files[0]}: looked for {masks / (name + suffix)}.*")
    if problems:
        more = f"; and {len(problems) - 3} more like these" if len(problems) > 3 else ""
        raise UserError(
            f"{'; '.join(problems[:3])}{more}; remove what is too much, or name masks as their images"
        )
    orphans = sorted(found_masks.keys() - {name + suffix for name in found_images})
    note = f"{len(orphans)} masks have no image, as {orphans[0]}" if orphans else ""
    pairs = [
        Pair(name, files[0], found_masks[name + suffix][0])
        for name, files in sorted(found_images.items())
    ]
    return pairs, note


def _files_by_name(folder: Path) -> dict[str, list[Path]]:
    """Image files below `folder` by relative path without ending."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {what}")
    files: dict[str, list[Path]] = defaultdict(list)
    seen = {folder.resolve()}  # links may lead in a circle
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_refuse):
        inner = {name: Path(parent, name).resolve() for name in sorted(folders)}
        folders[:] = [n for n, real in inner.items() if real not in seen and not n.startswith(".")]
        seen.update(inner.values())
        relative = os.path.relpath(parent, folder)
        prefix = "" if relative == "." else relative.replace(os.sep, "/") + "/"
        for name in sorted(names):
            path = Path(parent, name)
            if path.suffix.lower() in SUFFIXES and not name.startswith("."):
                files[prefix + path.stem].append(path)
    return files


def _refuse(error: OSError) -> None:
    raise UserError(f"{error.filename}: {error.strerror or error}; make it readable")


def _find_suffix(images: Iterable[str], masks: Iterable[str]) -> str:
    """What most masks' names have after an image's name: often nothing, or _mask.

    An image's name may be the start of another's (1 and 10): the longest one counts.
    """
    names = set(images)
    seen: Counter[str] = Counter()
    for mask in masks:
        for end in range(len(mask), 0, -1):
            if mask[:end] in names:
                seen[mask[end:]] += 1
                break
    return max(seen, key=lambda suffix: (seen[suffix], -len(suffix))) if seen else ""


def _listed(files: list[Path]) -> str:
    return " and ".join(map(str, files[:3]))


# -- splitting -----------------------------------------------------------------------------

# view 07 of car 0ee135a3cccc, frame f00930 of drive 0006R0
_NUMBERED = re.compile(r"^(.*[^_\-. ])[_\-. ]+[A-Za-z]?\d+$")


def split_pairs(
    pairs: list[Pair], *, validation: float, seed: int, pattern: str | None = None
) -> Split:
    """Keep about `validation` percent of `pairs` for validation, whole groups where found.

    Args:
        pattern: a regular expression whose first bracket names the group, searched for in
            each name; a name that does not match stands for itself. None: groups are
            detected.

    Raises:
        UserError: nothing would be left to train on or to score on.
    """
    groups, how = _group(pairs, pattern)
    target = max(1, round(len(pairs) * validation / 100)) if validation else 0
    chosen = _choose({name: len(members) for name, members in groups.items()}, target, seed)
    kept = sorted((p for name in chosen for p in groups[name]), key=lambda pair: pair.name)
    rest = sorted(
        (p for name in groups.keys() - chosen for p in groups[name]), key=lambda pair: pair.name
    )
    if not rest:
        raise UserError(
            f"{len(pairs)} image(s) in {len(groups)} group(s): none left to train on beside "
            "validation; add images, or give --validation 0"
        )
    return Split(rest, kept, how)


def _group(pairs: list[Pair], pattern: str | None) -> tuple[dict[str, list[Pair]], str]:
    if pattern is not None:
        groups = _groups_by(re.compile(pattern), pairs)
        return groups, f"{len(groups)} groups by --group-pattern"
    groups = _groups_by(_NUMBERED, pairs)
    alone = {pair.name: [pair] for pair in pairs}
    largest = max(groups, key=lambda name: len(groups[name]))
    if len(groups) == len(pairs) or len(groups) == 1:
        return alone, "image by image"
    if len(groups) < 3 or len(groups[largest]) * 2 > len(pairs):
        return alone, (
            f"image by image; the names look like {len(groups)} groups, {len(groups[largest])} of "
            f"{len(pairs)} images in {largest}: if they belong together, give --group-pattern"
        )
    return groups, f"{len(groups)} groups by name, as {largest} ({len(groups[largest])} images)"


def _groups_by(pattern: re.Pattern[str], pairs: list[Pair]) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        match = pattern.search(pair.name)
        groups[(match.group(1) or "") if match else pair.name].append(pair)
    return groups


def _choose(sizes: dict[str, int], target: int, seed: int) -> set[str]:
    """Groups of `target` images in all, or just under; the smallest one where all are larger.

    Their order is a hash of name and seed, so that a new image moves no other.
    """
    if target == 0:
        return set()

    def draw(name: str) -> str:
        return hashlib.sha256(f"{seed}:{name}".encode("utf-8", "surrogateescape")).hexdigest()

    chosen: set[str] = set()
    total = 0
    for name in sorted(sizes, key=draw):
        if total + sizes[name] <= target:
            chosen.add(name)
            total += sizes[name]
    return chosen or {min(sizes, key=lambda name: (sizes[name], draw(name)))}
