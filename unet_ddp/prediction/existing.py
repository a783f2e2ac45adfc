"""The files of earlier jobs: which are whole and fit their images, and how a mask was made."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from unet_ddp.data.masks import Size
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError, count_of, print_lines
from unet_ddp.files import is_address
from unet_ddp.prediction.config import PredictConfig
from unet_ddp.prediction.inspection import Look, find_size, look
from unet_ddp.prediction.outputs.base import ImageFiles
from unet_ddp.prediction.outputs.mask import MaskFile

_FEW = 20  # files at addresses; to ask for each is then faster than to list a folder
_AT_ONCE = 32  # masks at addresses that are looked at
_WINDOWS = {"tile", "overlap"}  # settings for images that are not seen whole
_INSTEAD = "or --overwrite in place of --skip-existing"
_WAYS = f"use another --output, {_INSTEAD}"

SAMPLE = 1000
"""Images of a job whose masks at addresses are looked at, if none is read."""


class Earlier(NamedTuple):
    """Files of a job; some may exist, of earlier jobs."""

    files: list[ImageFiles]  # of all images, each with the marks of its masks
    existing: frozenset[Path] = frozenset()  # which no other may replace
    done: frozenset[int] = frozenset()  # indices of the images to skip


@dataclass(frozen=True)
class Found:
    """The files of an image that exist."""

    index: int  # of the image
    whole: list[Path]
    damaged: list[Path]  # or masks that have not the size of their image
    is_complete: bool  # all of its files exist
    masks: dict[Path, Look]  # that are whole
    is_read: bool = True  # these have been looked at
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
    reads: bool,
) -> Earlier:
    """Return what earlier jobs have left; with `skips`, images that are done are skipped, and with `reads` their masks read.

    All processes call it, and each looks at its share. A file that is cut off, or a mask of another size than its
    image, counts as missing. A whole mask is never replaced: a person may have corrected it.

    Raises:
        UserError: a mask that would be skipped was made by a network of other classes, or one of another size than
            its image has no mark of a network.
    """
    if config.overwrite:
        return Earlier(files)
    step = sample_step(files, reads=reads)
    shares = world.gather(look_at(files[world.rank :: world.size], masks, step))
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
    marks = {each.index: {path: seen.mark for path, seen in each.masks.items()} for each in kept}
    marked = [replace(each, marks=marks.get(each.index, {})) for each in files]
    return Earlier(marked, frozenset(existing), frozenset(each.index for each in done))


def _report(damaged: Sequence[Path], done: Sequence[Found], own: str) -> None:
    """Print what is predicted again, and which masks another network or other settings have made."""
    network, _, classes = own.partition(" ")[0].partition(".")
    foreign: dict[int, Path] = {}
    changed: dict[int, tuple[Path, str]] = {}  # by the image, as its masks may be several
    kept = [(each.index, *item) for each in done for item in each.masks.items() if item[1].mark]
    for index, mask, seen in kept if own else []:
        theirs, _, their_classes = seen.mark.partition(" ")[0].partition(".")
        if their_classes != classes:
            raise UserError(f"{mask}: was made by a network of other classes; {_WAYS}")
        if theirs != network:
            foreign.setdefault(index, mask)
        elif difference := _compare_settings(seen, own):
            changed.setdefault(index, (mask, difference))
    read = sum(each.is_read for each in done)
    which = f" of the {read} that were looked at" if read < len(done) else ""
    if damaged:
        print_lines(
            f"predicting again {count_of(len(damaged), 'file')} cut off, or of another size than the image, e.g. "
            f"{damaged[0]}"
        )
    if foreign:
        print_lines(
            f"warning: keeping {count_of(len(foreign), 'mask')}{which} of another network, e.g. "
            f"{next(iter(foreign.values()))}; to have all of one, {_WAYS}"
        )
    if changed:
        mask, difference = next(iter(changed.values()))
        print_lines(
            f"warning: keeping {count_of(len(changed), 'mask')}{which} made with other settings, e.g. {mask} ({difference}); "
            f"to have all alike, {_WAYS}"
        )


def _compare_settings(mask: Look, own: str) -> str:
    """Return the settings in which a mask and this job differ, with both values; empty if the pixels are the same.

    Masks of earlier versions name no settings.
    """
    theirs, ours = (dict(word.split("=") for word in mark.split()[1:]) for mark in (mask.mark, own))
    every = dict.fromkeys([*theirs, *ours]) if theirs else {}
    if mask.size and "resolution" not in ours:
        sides = [each.get("tile", "") for each in (theirs, ours)]
        longest = max(mask.size) * float(ours["scale"])
        if all(side.isdecimal() and longest <= int(side) for side in sides):  # it is seen whole
            every = {name: None for name in every if name not in _WINDOWS}
    names = [name for name in every if theirs.get(name) != ours.get(name)]
    values = [" ".join(f"{n}={each.get(n, 'none')}" for n in names) for each in (theirs, ours)]
    return ", here ".join(filter(None, values))


# -- one image --------------------------------------------------------------------------------


def sample_step(files: Sequence[ImageFiles], *, reads: bool) -> int:
    """Return 1 to look at each image and mask at an address, n for each n-th: a request for each takes minutes.

    A job that `reads` the masks makes more requests anyway.
    """
    return 1 if reads else -(-len(files) // SAMPLE)


def look_at(files: Sequence[ImageFiles], masks: MaskFile, step: int = 1) -> list[Found]:
    """Return what exists of each image that has any file; `step` is that of `sample_step`."""
    existing = find_existing(path for each in files for path in each.written)
    begun = [each for each in files if not existing.isdisjoint(each.written)]
    are_far = any(is_address(path) for each in begun for path in (each.image, each.mask))
    with ThreadPoolExecutor(_AT_ONCE if are_far else None) as pool:
        return [*pool.map(partial(_look_at_one, masks, existing, step), begun)]


def _look_at_one(masks: MaskFile, existing: Container[Path], step: int, image: ImageFiles) -> Found:
    here = [path for path in image.written if path in existing]
    own = [path for path in masks.files(image) if path in existing]
    is_complete = len(here) == len(image.written)
    is_chosen = not is_complete or image.index % step == 0
    is_read = is_chosen or not is_address(image.mask)
    looks: dict[Path, Look | None] = dict.fromkeys(here, Look())
    for path in here if is_read else []:
        if path in own or not is_address(path):  # other objects are whole, as they are put
            looks[path] = look(path)
    size, refusal = None, ""
    if (is_chosen or not is_address(image.image)) and any(looks[path] for path in own):
        size = find_size(image.image)
    for path in own:
        seen = looks[path]
        if size and seen and seen.size not in (None, size):
            refusal = refusal or _refuse_foreign(path, seen, size)
            looks[path] = None
    whole = {path: seen for path, seen in looks.items() if seen}
    return Found(
        image.index,
        [*whole],
        [path for path in here if path not in whole],
        is_complete,
        {path: whole[path] for path in own if path in whole},
        is_read,
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
