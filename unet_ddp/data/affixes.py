"""Images and masks whose names differ: by the file's type, by a word, or by what all names of a folder share."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from os.path import commonprefix
from pathlib import Path

import numpy as np

from unet_ddp.data.names import without_compound
from unet_ddp.data.readers.read import read_mask
from unet_ddp.errors import UserError
from unet_ddp.files import as_path

_COMPARED = 3  # pairs of files that are read to tell masks from images
_TRIED = 50  # images whose masks are looked for in each way
_FIRST = re.compile(r"((?:.*/)?)([^\W\d_]*)[ _.-]*([^/]+)")
_LAST = re.compile(r"(.*[^ _.-/])[ _.-]+([^\W\d_][^\W_]*)")
_WORDS = re.compile(r"[^\W\d_]+|\d+|.")

Files = dict[str, list[str]]  # by the key of their relative path without suffix
_Kinds = dict[str, dict[str, list[str]]]  # files by kind and name
_Affix = tuple[str, str]  # what names begin and end with


# -- in one folder -------------------------------------------------------------------------


def divide(folder: Path, files: Files, suffix: str | None) -> tuple[Files, str, list[str]]:
    """Return the masks of one folder, what their names add to the images', and notes; leave the images in `files`.

    Raises:
        UserError: nothing tells them apart.
    """
    taken = None if suffix else take_masks(folder, files)
    if taken is not None:
        masks, kind = taken
        return masks, "", [f"{folder}: the {kind} files are the masks: they have fewer values"]
    suffix = suffix or detect_suffix(files, files, may_be_empty=False)
    if not suffix or suffix.isdigit():  # 10 is not the mask of 1
        raise UserError(
            f"{folder}: is the folder of the images and of the masks, and no names are those of an image and its "
            "mask, as x.jpg and x_mask.png; rename the masks, pair them in a --list, or make masks of annotations with "
            "python -m unet_ddp import"
        )
    masks = {name: found for name, found in files.items() if name.endswith(suffix)}
    for name in masks:
        del files[name]
    return masks, suffix, []


def take_masks(folder: Path, files: Files) -> tuple[Files, str] | None:
    """Return the masks in a folder by their images' names and what their kind is, and leave its images in `files`.

    Most images must have one mask, which differs from its image in the file's type (x.jpg and x.png), in the
    first word (image_1 and mask_1) or in the last (x_rgb and x_label). Masks are the files with fewer values.
    None of another folder.

    Raises:
        UserError: both have about as many values.
    """
    for split in _by_type, _by_first_word, _by_last_word:
        found: dict[str, _Kinds] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for name, file in ((name, file) for name, some in files.items() for file in some):
            key, kind = split(name, file)
            found[key][kind][name].append(file)
        both = Counter(tuple(sorted(kinds)) for kinds in found.values())
        (most, count), *_ = both.most_common(1)
        if len(most) == 2 and all(most) and 2 * count > len(found):
            some = [found[key] for key in sorted(found) if tuple(sorted(found[key])) == most]
            kind = _choose_kind(folder, some[:_COMPARED])
            return _take(files, found.values(), kind), kind
    return None


def _by_type(name: str, file: str) -> tuple[str, str]:
    return name, as_path(file).suffix.lower()


def _by_first_word(name: str, file: str) -> tuple[str, str]:
    parts = _FIRST.fullmatch(name)
    return (parts[1] + parts[3], parts[2]) if parts else (name, "")


def _by_last_word(name: str, file: str) -> tuple[str, str]:
    parts = _LAST.fullmatch(name)
    return (parts[1], parts[2]) if parts else (name, "")


def _choose_kind(folder: Path, some: Sequence[_Kinds]) -> str:
    """Return the kind of the masks, from a few names with two kinds."""
    first = [
        {kind: next(iter(named.values()))[0] for kind, named in kinds.items()} for kinds in some
    ]
    values = {kind: sum(_count_values(files[kind]) for files in first) for kind in first[0]}
    fewer, more = sorted(values, key=values.__getitem__)
    if 2 * values[fewer] > values[more]:
        one, other = sorted(map(str, first[0].values()))
        raise UserError(
            f"{folder}: which are the masks is not clear, e.g. of {one} and {other}; move them into a folder of "
            "their own, for --masks"
        )
    return fewer


def _count_values(file: str) -> float:
    """Return how many values a mask has; infinity of what can't be read as one."""
    try:
        return len(np.unique(read_mask(as_path(file))))
    except UserError:
        return float("inf")


def _take(files: Files, found: Iterable[_Kinds], kind: str) -> Files:
    """Return the masks by their images' names, or their own without an image, and leave the images in `files`."""
    masks: Files = {}
    files.clear()
    for kinds in found:
        named = kinds.pop(kind, {})
        for name, some in (pair for images in kinds.values() for pair in images.items()):
            files.setdefault(name, []).extend(some)
        image = next((name for images in kinds.values() for name in images), None)
        for name, some in named.items():
            masks.setdefault(image or name, []).extend(some)
    return masks


# -- in two folders ------------------------------------------------------------------------


def find_suffix(images: Files, masks: Files, suffix: str | None) -> tuple[Files, str, list[str]]:
    """Return the masks of a folder, by their images' names if none fits, what their names add to these, and notes."""
    added = detect_suffix(images, masks, may_be_empty=True) if suffix is None else suffix
    has_mask = any({name + added, without_compound(name) + added} & masks.keys() for name in images)
    renamed = None if has_mask else rename_masks(images, masks, suffix)
    if renamed is None:
        return masks, added, []
    first = min(images)
    return renamed, "", [f"names differ: {images[first][0]} goes with {renamed[first][0]}"]


def detect_suffix(images: Collection[str], masks: Iterable[str], *, may_be_empty: bool) -> str:
    """Return what most masks add to an image's name: often nothing, or _mask.

    An image's name may be the start of another's (1 and 10): the longest one counts.
    """
    names = {*images, *map(without_compound, images)}
    seen: Counter[str] = Counter()
    for mask in masks:
        longest = len(mask) if may_be_empty else len(mask) - 1
        for end in range(longest, 0, -1):
            if mask[:end] in names:
                seen[mask[end:]] += 1
                break
    return max(seen, key=lambda suffix: (seen[suffix], -len(suffix)), default="")


def rename_masks(images: Iterable[str], masks: Files, suffix: str | None) -> Files | None:
    """Return the masks by their images' names, where both differ by what all names of a side begin or end with.

    image_1 goes with mask_1, 21_training with 21_manual1, and x_leftImg8bit with x_gtFine_labelIds if that is
    the `suffix`. None if not every image has a mask so.
    """
    images = sorted(images)
    named = sorted(name for name in masks if name.endswith(suffix or ""))
    ways = [("", suffix)] if suffix else [*_list_affixes(named)]
    best: tuple[int, _Affix, _Affix] | None = None
    for way in ways:
        keys = {_strip(name, way) for name in named} - {""}
        for other in _list_affixes(images):
            length = sum(map(len, (*way, *other)))
            is_found = all(_strip(name, other) in keys for name in images[:_TRIED])
            if is_found and (best is None or length < best[0]):
                best = length, other, way
    if best is None:
        return None
    by_key = {_strip(name, best[1]): name for name in images}
    by_key.pop("", None)
    renamed = {by_key.get(_strip(name, best[2]), name): masks[name] for name in named}
    return renamed if renamed.keys() >= {*images} else None


def _list_affixes(names: Sequence[str]) -> Iterator[_Affix]:
    """Yield what all names of files begin and end with, in whole words, the shortest first."""
    bases = [name.rpartition("/")[2] for name in names]
    start = _WORDS.findall(commonprefix(bases))  # noqa: RUF071
    end = _WORDS.findall(commonprefix([base[::-1] for base in bases]))  # noqa: RUF071
    while start and start[-1].isdigit():  # a number goes on in the rest
        del start[-1]
    while end and end[-1].isdigit():
        del end[-1]
    starts = ["".join(start[:count]) for count in range(len(start) + 1)]
    ends = ["".join(end[:count])[::-1] for count in range(len(end) + 1)]
    yield from product(starts, ends) if len(bases) > 1 else [("", "")]


def _strip(name: str, affix: _Affix) -> str:
    """Return a name without what it begins and ends with; nothing of one that is no longer."""
    folder, slash, base = name.rpartition("/")
    start, end = affix
    if len(base) <= len(start) + len(end):
        return ""
    return folder + slash + base[len(start) : len(base) - len(end)]
