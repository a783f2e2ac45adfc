"""The files of earlier jobs: which are whole and fit their images, and how a mask was made."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from unet_ddp.data.masks import Size
from unet_ddp.data.readers.pillow import identify
from unet_ddp.data.readers.read import Source
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of, print_lines
from unet_ddp.files import is_address
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.outputs.base import ImageFiles
from unet_ddp.prediction.outputs.mask import MaskFile

_FEW = 20  # files at addresses; to ask for each is then faster than to list a folder
_START, _TAIL = 64, 4096  # bytes of a file, which is read no further
_PNG, _TIFF = b"\x89PNG", (b"II", b"MM")  # first bytes
_PICTURES = (".png", ".tif", ".tiff")
_SOFTWARE = 305  # tag of a TIFF
_PARTS = ((273, 279), (324, 325))  # tags of the places and sizes of its strips, and of its tiles
_MARK = re.compile(r"unet_ddp ([0-9a-f]+\.[0-9a-f]+(?: [a-z]+=[a-z0-9.+-]{1,24})*)")
_WINDOWS = {"tile", "overlap"}  # settings for images that are not seen whole
_DAMAGE = "corrupt or truncated", "not a readable image"  # in the messages of readers
_INSTEAD = "or --overwrite in place of --skip-existing"
_WAYS = f"use another --output, {_INSTEAD}"


class Earlier(NamedTuple):
    """Files of a job; some may exist, of earlier jobs."""

    files: list[ImageFiles]  # of all images, each with the mark of its mask
    existing: frozenset[Path] = frozenset()  # which no other may replace
    done: frozenset[int] = frozenset()  # indices of the images to skip


class Look(NamedTuple):
    """Facts of a whole file; its pixels are not decoded."""

    size: Size | None = None  # of a picture, if it is known
    mark: str = ""  # of the network and settings that made a mask; empty for one of a person or another program


@dataclass(frozen=True)
class Found:
    """The files of an image that exist."""

    index: int  # of the image
    whole: list[Path]
    damaged: list[Path]  # or masks that have not the size of their image
    is_complete: bool  # all of its files exist
    mask: Path | None = None
    mark: str = ""  # of that mask
    size: Size | None = None  # of it, if it is known
    refusal: str = ""  # why it can't be replaced, although it does not fit

    @property
    def is_done(self) -> bool:
        """True if nothing is to be predicted."""
        return self.is_complete and not self.damaged


def find_existing(paths: Iterable[Path]) -> set[Path]:
    """Return those that exist; at addresses a few are asked for, else their folders are listed."""
    existing: set[Path] = set()
    folders: dict[Path, list[Path]] = {}
    for path in paths:
        if is_address(path):
            folders.setdefault(path.parent, []).append(path)
        elif os.path.exists(path):  # pathlib's raises for names that are too long
            existing.add(path)
    for folder, wanted in folders.items():
        if len(wanted) < _FEW:
            existing.update(path for path in wanted if path.exists())
        else:
            existing.update({*wanted}.intersection(folder.iterdir()))
    return existing


def name_ways(flag: str, *, skips: bool) -> str:
    """Return what to type where a file that a flag asks for exists, in a job that `skips` existing ones or not."""
    other = f"another {flag}"
    if flag.startswith("--write "):  # its class names the file
        other = f"another path in {flag.removeprefix('--write ')}"
    if skips:
        return f"use {other}, {_INSTEAD}"
    keep = "--skip-existing to keep it, " if flag == "--output" else ""
    return f"use {keep}--overwrite, or {other}"


def find_earlier(
    files: list[ImageFiles],
    config: PredictConfig,
    world: World,
    masks: MaskFile,
    *,
    skips: bool,
) -> Earlier:
    """Return what earlier jobs have left; with `skips`, images that are done are skipped.

    All processes call it, and each looks at its share. A file that is cut off, or a mask of another size than its
    image, counts as missing. A whole mask is never replaced: a person may have corrected it.

    Raises:
        UserError: a mask that would be skipped was made by a network of other classes, or one of another size than
            its image has no mark of a network.
    """
    if config.overwrite:
        return Earlier(files)
    shares = world.gather(look_at(files[world.rank :: world.size], masks))
    found = [each for share in shares for each in share]
    refused = [each.refusal for each in found if each.refusal]
    if refused and config.skip_existing:
        raise UserError(refused[0])
    done = [each for each in found if skips and each.is_done]
    kept = found
    if config.skip_existing:
        kept = [each for each in found if not each.damaged]
        damaged = [path for each in found for path in each.damaged]
        world.on_main(lambda: _report(damaged, done, files[0].mark))
    existing = {path for each in kept for path in (*each.whole, *each.damaged)}
    marks = {each.index: each.mark for each in kept if each.mask is not None}
    marked = [replace(each, mark=marks.get(each.index, each.mark)) for each in files]
    return Earlier(marked, frozenset(existing), frozenset(each.index for each in done))


def _report(damaged: Sequence[Path], done: Sequence[Found], own: str) -> None:
    """Print what is predicted again, and which masks another network or other settings have made."""
    network, _, classes = own.partition(" ")[0].partition(".")
    foreign, changed = [], {}
    for each in done if own else []:
        theirs, _, their_classes = each.mark.partition(" ")[0].partition(".")
        if each.mark and their_classes != classes:
            raise UserError(f"{each.mask}: was made by a network of other classes; {_WAYS}")
        if each.mark and theirs != network:
            foreign.append(each.mask)
        elif difference := _compare_settings(each, own):
            changed[each.mask] = difference
    if damaged:
        fault = "cut off, or of another size than the image"
        print_lines(f"predicting again {count_of(len(damaged), 'file')} {fault}, e.g. {damaged[0]}")
    if foreign:
        print_lines(
            f"warning: keeping {count_of(len(foreign), 'mask')} of another network, e.g. {foreign[0]}; to have all of "
            f"one, {_WAYS}"
        )
    if changed:
        mask, difference = next(iter(changed.items()))
        print_lines(
            f"warning: keeping {count_of(len(changed), 'mask')} made with other settings, e.g. {mask} ({difference}); "
            f"to have all alike, {_WAYS}"
        )


def _compare_settings(found: Found, own: str) -> str:
    """Return the settings in which a mask and this job differ, with both values; empty if the pixels are the same.

    Masks of earlier versions name no settings.
    """
    theirs, ours = (
        dict(word.split("=") for word in mark.split()[1:]) for mark in (found.mark, own)
    )
    every = dict.fromkeys([*theirs, *ours]) if theirs else {}
    if found.size and "resolution" not in ours:
        sides = [each.get("tile", "") for each in (theirs, ours)]
        longest = max(found.size) * float(ours["scale"])
        if all(side.isdecimal() and longest <= int(side) for side in sides):  # it is seen whole
            every = {name: None for name in every if name not in _WINDOWS}
    names = [name for name in every if theirs.get(name) != ours.get(name)]
    values = [" ".join(f"{n}={each.get(n, 'none')}" for n in names) for each in (theirs, ours)]
    return ", here ".join(filter(None, values))


# -- one image --------------------------------------------------------------------------------


def look_at(files: Sequence[ImageFiles], masks: MaskFile) -> list[Found]:
    """Return what exists of each image that has any file."""
    existing = find_existing(path for each in files for path in each.written)
    begun = [each for each in files if not existing.isdisjoint(each.written)]
    with ThreadPoolExecutor() as pool:
        return [*pool.map(partial(_look_at_one, masks, existing), begun)]


def _look_at_one(masks: MaskFile, existing: Container[Path], image: ImageFiles) -> Found:
    here = [path for path in image.written if path in existing]
    looks = {path: look(path) for path in here}
    known = {path: looks[path] for path in masks.files(image) if path in looks}
    refusal = ""
    if any(known.values()):
        size = _find_size(image.image)
        for path, seen in known.items():
            if size and seen and seen.size not in (None, size):
                refusal = refusal or _refuse_foreign(path, seen, size)
                looks[path] = None
    mask = next(iter(known), None)
    first = next(filter(None, known.values()), Look())
    return Found(
        image.index,
        [path for path, seen in looks.items() if seen],
        [path for path, seen in looks.items() if not seen],
        len(here) == len(image.written),
        mask,
        first.mark,
        first.size,
        refusal,
    )


def _refuse_foreign(path: Path, seen: Look, size: Size) -> str:
    """Return why a mask of another size than its image is not replaced: without a mark it may be a person's work."""
    if seen.mark or not seen.size:
        return ""
    (height, width), (rows, columns) = seen.size, size
    return (
        f"{path}: {width}x{height} pixels, its image {columns}x{rows}, and not known as a prediction; "
        "rename it, or use another --output"
    )


def _find_size(image: Path) -> Size | None:
    """Return an image's size; None if it can't be read, or would have to be fetched."""
    if not is_address(image):
        with suppress(UserError), Source(image) as source:
            return source.header.size
    return None


def look(path: Path) -> Look | None:
    """Return what an existing file says; None if it is cut off, or is no picture in spite of its name."""
    if is_address(path):  # there, files are put whole
        return Look()
    try:
        with path.open("rb") as file:
            start = file.read(_START)
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - _TAIL))
            end = file.read()
    except OSError:  # who reads or replaces it says why
        return Look()
    if not any(start) or (start.startswith(_PNG) and b"IEND" not in end):
        return None
    if path.suffix.lower() == ".npy":
        return _look_at_array(path)
    if path.suffix.lower() not in _PICTURES:
        return Look()
    try:
        with identify(path) as picture:
            return _look_at_picture(picture, length)
    except Image.DecompressionBombError:
        return Look()
    except Exception:  # Pillow's are of many kinds
        return _look_at_tiff(path) if start.startswith(_TIFF) else None


def _look_at_array(path: Path) -> Look | None:
    """Return what a NumPy file says; None if it is shorter than its header says."""
    try:
        np.load(path, mmap_mode="r")
    except Exception:  # of many kinds
        return None
    return Look()


def _look_at_picture(picture: Image.Image, length: int) -> Look | None:
    """Return what a picture in a file of that length says; None if its last pixels are missing."""
    tags: Any = getattr(picture, "tag_v2", {})
    for place, count in _PARTS:
        parts = zip(tags.get(place, ()), tags.get(count, ()), strict=False)
        if any(start + size > length for start, size in parts):
            return None
    mark = _MARK.fullmatch(str(tags.get(_SOFTWARE) or picture.info.get("Software", "")))
    return Look((picture.height, picture.width), mark[1] if mark else "")


def _look_at_tiff(path: Path) -> Look | None:
    """Return what a TIFF that Pillow does not know says."""
    try:
        with Source(path) as source:
            return Look(source.header.size)
    except UserError as error:
        return None if is_damage(error) else Look()


def is_damage(error: UserError) -> bool:
    """Return whether a file could not be read because it is damaged."""
    return any(words in str(error) for words in _DAMAGE)
