"""Masks in a folder for each class, as one mask: masks/*/x.png is of masks/CLASS/x.png and the others."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from unet_ddp.data.listing import files_by_name
from unet_ddp.data.masks import as_numbers
from unet_ddp.data.names import find_spelling
from unet_ddp.data.pairs import CLASSES_MARK, Pair, Pairs, Stamp, find_stamp
from unet_ddp.data.readers.bands import IGNORED_CODE, MOST_PLANES, join_planes
from unet_ddp.data.readers.base import Codes
from unet_ddp.data.readers.read import Source, hidden_shape_message
from unet_ddp.data.suffixes import detect_suffix, is_number
from unet_ddp.errors import UserError, join_some
from unet_ddp.files import temporary_folder, write_errors
from unet_ddp.prediction.outputs.image_files import write_png

_SHOWN = 6  # values in a message


class ClassFolderPairs(Pairs):
    """Pairs of which masks are in a folder for each class, perhaps among others."""

    def find(self, problems: list[str]) -> Pairs:
        """Return the pairs with a mask of any class, with stamps; the others are problems."""
        kept = []
        for pair in self:
            if split_marked(pair.mask) is None:
                kept.append(pair)
            elif any(class_files(pair.mask).values()):
                kept.append(_stamped(pair))
            else:
                problems.append(f"{pair.mask}: no folder has such a mask")
        return ClassFolderPairs(kept)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the folders."""
        marked = next(filter(None, (split_marked(pair.mask) for pair in self)), None)
        return tuple(class_folders(marked[0])) if marked else ()

    def to_read(self, row: int) -> Pair:
        """Return the paths of a pair, and the stamp of its mask as it is now, after `share`."""
        return _stamped(super().to_read(row))

    @contextmanager
    def local(self, path: Path, ignore: int | None = None) -> Iterator[Path]:
        """Yield the file, or a temporary PNG of the codes of all classes; an error names `path`."""
        if split_marked(path) is None:
            yield path
            return
        codes = read_codes(path, ignore)
        place = temporary_folder()
        with write_errors(place, "make room, or set TMPDIR to another folder"):
            file = tempfile.NamedTemporaryFile(prefix="unet_ddp-", suffix=".png", dir=place)  # noqa: SIM115
        with file:
            with write_errors(place, "make room, or set TMPDIR to another folder"):
                bands = [np.ascontiguousarray(codes)]
                write_png(file, bands, codes.shape, depth=8 if codes.dtype == np.uint8 else 16)
                file.flush()
            try:
                yield Path(file.name)
            except UserError as error:
                raise type(error)(str(error).replace(file.name, str(path))) from None

    def files_of(self, path: Path) -> Sequence[Path]:
        """Return the file itself, or the files of all classes."""
        if split_marked(path) is None:
            return [path]
        return [file for file in class_files(path).values() if file is not None]


def _stamped(pair: Pair) -> Pair:
    if split_marked(pair.mask) is None:
        return pair
    return replace(pair, stamps=(None, stamp_of(pair.mask)))


def merge_class_masks(
    masks: Path,
    found_images: Mapping[str, list[str]],
    found_masks: dict[str, list[str]],
    stamps: dict[str, Stamp],
    suffix: str | None,
) -> dict[str, list[str]]:
    """Return the masks by name, where `masks` has a folder for each class masks/*/NAME.png; note stamps.

    They are returned as they are if an image has a mask of its name, or if fewer than two folders have masks.
    """
    merged: dict[str, dict[str, list[str]]] = {}  # files by name and folder
    for path, files in found_masks.items():
        folder, slash, name = path.partition("/")
        if slash:
            merged.setdefault(name, {})[folder] = files
    folders = {folder for classes in merged.values() for folder in classes}
    if len(folders) < 2 or _match(found_images, found_masks, suffix):
        return found_masks
    if suffix is None:
        _refuse_own_suffixes(masks, found_images, merged)
    if not _match(found_images, merged, suffix):
        return found_masks
    if len(folders) > MOST_PLANES:
        raise UserError(
            f"{masks}: {len(folders)} folders of classes; at most {MOST_PLANES} can overlap: if none do, "
            "make masks of them with python -m unet_ddp import"
        )
    _suffixes.cache_clear()
    found = {}
    for name, classes in merged.items():
        several = [files for files in classes.values() if len(files) > 1]
        marked = masks / CLASSES_MARK / f"{name}.png"
        found[name] = several[0] if several else [str(marked)]
        stamps[str(marked)] = stamp_of(marked)
    return found


def _refuse_own_suffixes(
    masks: Path, images: Collection[str], merged: Mapping[str, Mapping[str, list[str]]]
) -> None:
    """Refuse masks whose names end in each folder with another word, as car/x_car.png and tree/x_tree.png.

    A suffix is one for all folders: the masks of the others would have no image.
    """
    if any(len(classes) > 1 for classes in merged.values()):
        return
    names: dict[str, list[str]] = {}
    for name, classes in merged.items():
        names.setdefault(next(iter(classes)), []).append(name)
    found: dict[str, str] = {}  # an example by what its folder's names add
    for some in names.values():
        added = detect_suffix(images, some, may_be_empty=True)
        is_other = bool(added) and is_number(added)  # 10 is not the mask of 1
        if not is_other and _match(images, some, added):
            example = min(name for name in some if name.endswith(added))
            found.setdefault(added, next(iter(merged[example].values()))[0])
    if len(found) > 1:
        one, other, *_ = found.values()
        raise UserError(
            f"{masks}: masks are named by their class, e.g. {one} and {other}: give the masks of an image one name in "
            "all folders, as car/x.png and tree/x.png"
        )


def _match(images: Collection[str], masks: Iterable[str], suffix: str | None) -> bool:
    """Return whether any image has a mask."""
    if suffix is None:
        suffix = detect_suffix(images, masks, may_be_empty=True)
    return not {name + suffix for name in images}.isdisjoint(masks)


# -- the files of a mask -------------------------------------------------------------------


def split_marked(path: Path) -> tuple[Path, Path] | None:
    """Return masks and x.png of masks/*/x.png; None for the path of a file."""
    if CLASSES_MARK not in path.parts:
        return None
    place = path.parts.index(CLASSES_MARK)
    return Path(*path.parts[:place]), Path(*path.parts[place + 1 :])


def class_folders(root: Path) -> list[str]:
    """Return the names of the visible folders in `root` that have masks, sorted: bit k is the k-th one.

    A process lists them once.
    """
    return list(_suffixes(root))


@cache
def _suffixes(root: Path) -> dict[str, list[str]]:
    """Return the suffixes of the masks in each folder of a class, by its name."""
    found: dict[str, set[str]] = {}
    for name, files in files_by_name(root, {}).items():
        folder, slash, _ = name.partition("/")
        if slash:
            found.setdefault(folder, set()).update(Path(file).suffix for file in files)
    return {folder: sorted(found[folder]) for folder in sorted(found)}


def class_files(path: Path) -> dict[str, Path | None]:
    """Return the file of each class's folder for a mask masks/*/x.png, None where it lacks one."""
    marked = split_marked(path)
    assert marked is not None
    root, rest = marked
    found: dict[str, Path | None] = {}
    for folder, suffixes in _suffixes(root).items():
        names = (str(rest.with_suffix("")) + suffix for suffix in suffixes)
        files = (root / folder / find_spelling(root / folder, name) for name in names)
        found[folder] = next(filter(Path.is_file, files), None)
    return found


def stamp_of(path: Path) -> Stamp:
    """Return the size in bytes of a mask's files, and a number that changes with any of them."""
    size, parts = 0, []
    for name, file in class_files(path).items():
        stamp: Stamp = (0, 0)
        if file is not None:
            with suppress(OSError):  # removed just now
                stamp = find_stamp(file)
        size += stamp[0]
        parts.append((name, file and file.suffix, stamp))
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()
    return size, int(digest[:15], 16)


# -- their content -------------------------------------------------------------------------


def read_codes(path: Path, ignore: int | None = None) -> Codes:
    """Return the codes (H, W) of the classes' masks: see `join_planes`; a class without one has no pixel.

    Pixels of the value `ignore` in any of them are IGNORED_CODE, besides the other classes' bits.
    """
    files, planes = class_files(path), dict[str, Codes]()
    for name, file in files.items():
        if file is None:
            continue
        planes[name] = _read_plane(file, ignore)
        first = next(iter(planes))
        if planes[name].shape != planes[first].shape:
            sizes = ["{1}x{0}".format(*planes[each].shape) for each in (name, first)]
            raise UserError(
                f"{file} is {sizes[0]}, {files[first]} {sizes[1]}; the masks of an image's classes have one "
                "size: resize one"
            )
    if not planes:
        raise UserError(f"{path}: no folder has such a mask")
    empty = np.zeros_like(next(iter(planes.values())))
    kept = (planes.get(name, empty) for name in files)
    codes = join_planes((plane != 0) & (plane != ignore) for plane in kept)
    for plane in planes.values():
        if (ignored := plane == ignore).any():
            codes = codes | ignored * np.int32(IGNORED_CODE)
    return codes


def _read_plane(file: Path, ignore: int | None) -> Codes:
    """Return the values (H, W) of the mask of one class.

    Raises:
        UserError: it is not of one class.
    """
    with Source(file) as source:
        header = source.header
        codes = as_numbers(source.mask(), header.palette, ignore)
        if source.hides_shape(codes):
            raise UserError(hidden_shape_message(file))
    if header.is_lossy:
        raise UserError(f"{file}: lossy compression changes values; save masks as PNG")
    values: list[int] = np.unique(codes).tolist()
    found = [value for value in values if value not in (0, ignore)]
    if header.has_colour_values or len(found) > 1:
        kind = "colours" if header.has_colour_values else "values"
        shown = (
            "" if header.has_colour_values else f" ({join_some(list(map(str, values)), _SHOWN)})"
        )
        advice = ""
        if len(found) == 2 and ignore is None:
            advice = f"; if {found[1]} marks pixels to ignore, train with --ignore-index {found[1]}"
        raise UserError(
            f"{file}: {len(values)} {kind}{shown}; the mask of a class in a folder of its own has 0 and one other "
            f"value{advice}"
        )
    return codes
