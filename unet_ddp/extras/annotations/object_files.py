"""Masks of a file for each object, not for each class or kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from unet_ddp.data.listing import files_by_name
from unet_ddp.data.names import file_key, without_compound
from unet_ddp.data.suffixes import detect_suffix, group_masks, suffix_flag
from unet_ddp.errors import UserError, count_of, join_some

ONLY_CLASS = "object"
_MASKS = "/masks/"
Masks = dict[str, list[tuple[str, Path]]]  # of an image: class and file


def find_objects(
    path: Path, folders: Iterable[Path], images: dict[str, Path]
) -> tuple[Masks, str] | None:
    """Return the masks of images of which any has several, and a note: x/1.png, x_1.png, or x/masks/1.png of x/images/y.png.

    None if there is no such image, or the `folders` in `path` are classes.
    """
    found = files_by_name(path, {})
    masks = [name for name in found if _MASKS in name] or [*found]
    pictures = [name for name in images if _MASKS not in name]
    above = {name: name.partition("/images/")[0] for name in pictures}
    count = Counter(above.values())
    keys = {key if count[key] == 1 else name: name for name, key in above.items()}
    groups = group_masks(keys, masks)
    several = {keys[key]: group for key, group in groups.items() if len(group) > 1}
    if not several or _are_classes(path, folders, masks, pictures):
        return None
    _refuse_kinds(path, several)
    owners = {mask: keys[key] for key, group in groups.items() for mask in group.values()}
    objects: Masks = {}
    for mask in sorted(masks):
        folder = mask.rpartition("/")[0].removesuffix(_MASKS[:-1])
        files = [(ONLY_CLASS, Path(file)) for file in found[mask]]
        objects.setdefault(owners.get(mask, folder or mask), []).extend(files)
    for name in images.keys() - {*pictures}:
        del images[name]
    joined = sum(map(len, several.values()))
    return objects, f"{count_of(len(several), 'image')} with several masks: {joined} files joined"


def _are_classes(
    path: Path, folders: Iterable[Path], masks: Iterable[str], pictures: Iterable[str]
) -> bool:
    """Return whether files in `folders` have images' names, as masks of classes do; a class's may begin with one, too.

    Raises:
        UserError: all folders have images' names, too: each may be a class or an image.
    """
    names = {*map(without_compound, pictures)}
    files: dict[str, list[str]] = {file_key(folder.name): [] for folder in folders}
    for mask in masks:
        folder, slash, rest = mask.partition("/")
        if slash and folder in files:
            files[folder].append(rest)
    owners = [owner for inside in files.values() for owner in _find_owners(names, inside)]
    count = sum(map(len, files.values()))
    if len(_find_owners(names, files)) < len(files):
        return 2 * len(owners) > count
    if 2 * len(files) <= len(names) == len({*owners}):
        return True
    if count == len(owners) > 0:
        raise UserError(
            f"{path}: its folders {join_some(sorted(files), 3)} and the files in them have names of images, so that a folder "
            "may be a class, or have a file for each object of an image; rename folders of classes, as class_1, or "
            "move files of objects to one folder, as 1_1.png"
        )
    return False


def _find_owners(names: Collection[str], files: Collection[str]) -> list[str]:
    """Return the images' names that files have before what most of them add."""
    suffix = detect_suffix(names, files, may_be_empty=True)
    found = (file.removesuffix(suffix) for file in files if file.endswith(suffix))
    return [name for name in map(without_compound, found) if name in names]


def _refuse_kinds(path: Path, several: dict[str, dict[str, str]]) -> None:
    """Refuse masks if each image that has several has the same ones, without a number: kinds, no objects."""
    first, *others = several.values()
    if not others or any(group.keys() != first.keys() for group in others):
        return
    rests = sorted(first)
    if not re.search(r"\d", "".join(rests)):
        kinds = " and ".join(repr(rest) for rest in rests[:3])
        raise UserError(
            f"{path}: {len(several)} images have masks whose names add {kinds}; if they are of several kinds, train on one "
            f"with {suffix_flag(rests[-1])}, or move each kind to a folder with its name, and import that of all; if each "
            "is of an object, number them, as x_1.png"
        )
