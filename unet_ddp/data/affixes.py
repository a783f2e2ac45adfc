"""Images and masks whose names differ: by the file's type, by a word, or by what all names of a folder share."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from os.path import commonprefix
from pathlib import Path

import numpy as np

from unet_ddp.data.names import without_compound
from unet_ddp.data.readers.read import read_mask
from unet_ddp.data.suffixes import (
    MASKS,
    Files,
    detect_suffix,
    is_number,
    plain,
    refuse_several,
)
from unet_ddp.errors import UserError
from unet_ddp.files import as_path

_COMPARED = 5  # pairs of files that are read to tell masks from images
_IMAGES = {"image", "img", "photo", "rgb", "input", "raw", ".jpg", ".jpeg"}
_FIRST = re.compile(r"((?:.*/)?)([^\W\d_]*)[ _.-]*([^/]+)")
_LAST = re.compile(r"(.*[^ _.-/])[ _.-]+([^\W\d_][^\W_]*)")

_Kinds = dict[str, dict[str, list[str]]]  # files by kind and name
_Affix = tuple[str, str]  # what names begin and end with
# Of a name and a file: what an image and its mask share, and the kind.
_Split = Callable[[str, str], tuple[str, str]]


# -- in one folder -------------------------------------------------------------------------


def divide(folder: Path, files: Files, suffix: str | None) -> tuple[Files, str, list[str]]:
    """Return the masks of one folder, what their names add to the images', and notes; leave the images in `files`.

    Raises:
        UserError: nothing tells them apart.
    """
    added = suffix or detect_suffix(files, files, may_be_empty=False)
    fits = bool(suffix) or (not added.isdigit() and _fits_all(files, added))
    for split in (_by_type,) if fits else (_by_type, _by_folder, _by_first_word, _by_last_word):
        taken = None if suffix else _take_masks(folder, files, split)
        if taken is not None:
            masks, kind = taken
            return masks, "", [f"{folder}: the {kind} files are the masks"]
    # 10 is not the mask of 1, nor x-2 that of x.
    if not fits and is_number(added) and not _fits_most(files, added):
        raise UserError(
            f"{folder}: is the folder of the images and of the masks, and no names are those of an image and its "
            "mask, as x.jpg and x_mask.png; rename the masks, pair them in a --list, or make masks of annotations with "
            "python -m unet_ddp import"
        )
    masks = {name: found for name, found in files.items() if name.endswith(added)}
    for name in masks:
        del files[name]
    return masks, added, []


def _fits_all(files: Files, suffix: str) -> bool:
    """Return whether every file that is no mask by a suffix has one."""
    return bool(suffix) and all(name.endswith(suffix) or name + suffix in files for name in files)


def _fits_most(files: Files, suffix: str) -> bool:
    """Return whether most files that are no mask by a suffix have one, as x_1; x10 is none of x1."""
    images = [name for name in files if not name.endswith(suffix)]
    has_mask = [name + suffix in files for name in images]
    return not suffix.isdigit() and 2 * sum(has_mask) > len(images)


def _take_masks(folder: Path, files: Files, split: _Split) -> tuple[Files, str] | None:
    """Return the masks in a folder by their images' names and what their kind is, and leave its images in `files`.

    Most images must have one mask, of another kind: the file's type (x.jpg and x.png), a folder's word
    (images/x and masks/x), the first word (image_1 and mask_1) or the last (x_rgb and x_label). A word says
    which are the masks, else the files with fewer values. None of another folder.

    Raises:
        UserError: neither says so.
    """
    found: dict[str, _Kinds] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for name, file in ((name, file) for name, some in files.items() for file in some):
        key, kind = split(name, file)
        found[key][kind][name].append(file)
    both = Counter(tuple(sorted(kinds)) for kinds in found.values())
    (most, count), *_ = both.most_common(1)
    if len(most) != 2 or not all(most) or 2 * count <= len(found):
        return None
    some = [found[key] for key in sorted(found) if tuple(sorted(found[key])) == most]
    kind = _choose_by_word(most) or _choose_by_values(folder, some)
    return _take(files, found.values(), kind), kind


def _by_type(name: str, file: str) -> tuple[str, str]:
    return without_compound(name), as_path(file).suffix.lower()


def _by_folder(name: str, file: str) -> tuple[str, str]:
    *folders, base = name.split("/")
    place = max(
        (k for k, folder in enumerate(folders) if plain(folder) in MASKS | _IMAGES), default=None
    )
    if place is None:
        return name, "."
    return "/".join([*folders[:place], *folders[place + 1 :], base]), folders[place]


def _by_first_word(name: str, file: str) -> tuple[str, str]:
    parts = _FIRST.fullmatch(name)
    return (parts[1] + parts[3], parts[2]) if parts else (name, "")


def _by_last_word(name: str, file: str) -> tuple[str, str]:
    parts = _LAST.fullmatch(name)
    return (parts[1], parts[2]) if parts else (name, "")


def _choose_by_word(kinds: Sequence[str]) -> str | None:
    """Return the kind of the masks if its word says so, or that of the images does."""
    words = {plain(kind): kind for kind in kinds}
    masks, images = words.keys() & MASKS, words.keys() & _IMAGES
    if len(words) == 2 and len(masks) == 1:
        return words[masks.pop()]
    if len(words) == 2 and len(images) == 1:
        return next(kind for word, kind in words.items() if word not in images)
    return None


def _choose_by_values(folder: Path, some: Sequence[_Kinds]) -> str:
    """Return the kind whose files have fewer values, at most half as many in nearly all of some pairs."""
    chosen = some[:: -(-len(some) // _COMPARED)]
    fewer = Counter[str]()
    for kinds in chosen:
        files = {kind: next(iter(named.values()))[0] for kind, named in kinds.items()}
        values = {kind: _count_values(file) for kind, file in files.items()}
        least = min(values, key=values.__getitem__)
        if 2 * values[least] <= max(values.values()) and values[least] < math.inf:
            fewer[least] += 1
    (kind, votes), *_ = [*fewer.most_common(1), ("", 0)]
    if votes <= 2 * (fewer.total() - votes):
        one, other = sorted(map(str, files.values()))
        raise UserError(
            f"{folder}: which are the masks is not clear, e.g. of {one} and {other}; move them into a folder of "
            "their own, for --masks"
        )
    return kind


def _count_values(file: str) -> float:
    """Return how many values a mask has; infinitely many of what can't be read as one."""
    try:
        return len(np.unique(read_mask(as_path(file))))
    except UserError:
        return math.inf


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
        if added and suffix is None:
            refuse_several(images, masks, added)
        return masks, added, []
    first = min(images.keys() & renamed.keys())
    return renamed, "", [f"names differ: {images[first][0]} goes with {renamed[first][0]}"]


def rename_masks(images: Iterable[str], masks: Files, suffix: str | None) -> Files | None:
    """Return the masks by their images' names, where both differ by what all names of a side begin or end with.

    image_1 goes with mask_1, 21_training with 21_manual1, and x_leftImg8bit with x_gtFine_labelIds if that is
    the `suffix`. None if what differs has other numbers, or if an image has no mask so: where no mask is left
    over, some images may lack theirs.
    """
    images = sorted(images)
    named = sorted(name for name in masks if name.endswith(suffix or ""))
    if len(images) == 1:  # numbers are all that can tell
        same = [name for name in named if _numbers(name) == _numbers(images[0]) != []]
        rest = {name: masks[name] for name in named if name not in same}
        return {images[0]: masks[same[0]], **rest} if len(same) == 1 else None
    # Some masks may have no image: what they share of a number or name, the images do, too.
    start, end = ("", suffix) if suffix else _shared_by(named)
    by_key = {_strip(name, len(start), len(end)): name for name in named}
    by_key.pop("", None)
    first, last = _shared_by(images, cut=False)
    for ahead, after in product(range(len(first) + 1), range(len(last) + 1)):
        keys = {name: key for name in images if (key := _strip(name, ahead, after)) in by_key}
        lacks_few = len(keys) == len(by_key) and 2 * len(keys) > len(images)
        if lacks_few or len(keys) == len(images):
            others = _numbers(first[:ahead] + last[len(last) - after :])
            if others and _numbers(start + end) not in ([], others):
                return None
            found = {by_key[key]: name for name, key in keys.items()}
            return {found.get(name, name): masks[name] for name in named}
    return None


def _shared_by(names: Sequence[str], *, cut: bool = True) -> _Affix:
    """Return what all names of files begin and end with; of one name, what may be so; without half a number if `cut`."""
    bases = [name.rpartition("/")[2] for name in names]
    start = commonprefix(bases)  # noqa: RUF071
    end = commonprefix([base[::-1] for base in bases])[::-1]  # noqa: RUF071
    if cut:
        start, end = start.rstrip("0123456789"), end.lstrip("0123456789")
    return start, end


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _strip(name: str, ahead: int, after: int) -> str:
    """Return a name without so many letters at its beginning and end; nothing if it is no longer, or cut in a number."""
    folder, slash, base = name.rpartition("/")
    end = len(base) - after
    if end <= ahead:
        return ""
    for place in (ahead, end):
        if base[max(place - 1, 0) : place].isdigit() and base[place : place + 1].isdigit():
            return ""
    return folder + slash + base[ahead:end]
