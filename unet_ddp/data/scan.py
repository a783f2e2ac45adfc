"""A look at every file before the first step: is it whole, how large, which values.

Decoding all files takes a while, so what was found is kept in the user's cache folder, by
path, and believed as long as a file's size and time are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unet_ddp.data.pairs import Pair
from unet_ddp.data.reading import ImageFormat, check_decodes, read_header, read_mask
from unet_ddp.errors import UserError

_VERSION = 1  # of what an entry holds
_SAVE_EVERY = 10  # seconds
_MOST_VALUES = 1024  # a mask of more different values is no mask of classes


@dataclass(frozen=True)
class FileFacts:
    """What the scan found in one file."""

    width: int
    height: int
    channels: int
    max_value: int
    rgb: bool
    values: list[int] | None
    """For masks: the values, rising."""
    palette: list[list[int]] | None


Progress = Callable[[Iterable[FileFacts], int], Iterable[FileFacts]]


@dataclass(frozen=True)
class Findings:
    """What the scan found in a data set."""

    format: ImageFormat
    sizes: list[tuple[int, int]]
    """(height, width) of every pair."""
    values: list[int]
    """All mask values, rising."""
    rgb: bool
    palette: tuple[tuple[int, int, int], ...] | None


def scan(pairs: list[Pair], *, progress: Progress, workers: int = 1) -> Findings:
    """Look at every image and mask.

    Args:
        progress: wraps an iterable and its length, to show how far it is.
        workers: threads; decoders let go of Python's lock.

    Raises:
        UserError: a file that is damaged, of a kind of its own, or of another size than its
            partner.
    """
    files = [pair.image for pair in pairs] + [pair.mask for pair in pairs]
    kinds = [False] * len(pairs) + [True] * len(pairs)
    cache = _Cache(pairs[0].mask.parent)

    def look(path: Path, is_mask: bool) -> FileFacts:
        return cache.facts(path, is_mask)

    with ThreadPoolExecutor(max(1, workers)) as pool:
        try:
            facts = []
            for found in progress(pool.map(look, files, kinds), len(files)):
                facts.append(found)
                cache.save_now_and_then()
        finally:
            pool.shutdown(cancel_futures=True)
            cache.save()
    images, masks = facts[: len(pairs)], facts[len(pairs) :]
    _compare_sizes(pairs, images, masks)
    rgb = _agree(pairs, masks)
    values = sorted(set().union(*(mask.values or [] for mask in masks)))
    return Findings(
        _common_format(pairs, images),
        [(image.height, image.width) for image in images],
        values,
        rgb,
        _common_palette(masks),
    )


def _compare_sizes(pairs: list[Pair], images: list[FileFacts], masks: list[FileFacts]) -> None:
    differing = [
        f"{pair.mask} has {mask.width}x{mask.height} pixels, its image {pair.image} has "
        f"{image.width}x{image.height}"
        for pair, image, mask in zip(pairs, images, masks, strict=True)
        if (image.width, image.height) != (mask.width, mask.height)
    ]
    if differing:
        more = f" (and {len(differing) - 1} more pairs)" if len(differing) > 1 else ""
        raise UserError(f"{differing[0]}{more}; make their sizes equal")


def _agree(pairs: list[Pair], masks: list[FileFacts]) -> bool:
    """Whether masks are colour images; all or none of them must be."""
    kinds = {mask.rgb: pair.mask for pair, mask in zip(pairs, masks, strict=True)}
    if len(kinds) == 2:
        raise UserError(
            f"{kinds[True]} is a colour image, {kinds[False]} is not: masks of one data set must "
            "be of one kind"
        )
    return True in kinds


def _common_format(pairs: list[Pair], images: list[FileFacts]) -> ImageFormat:
    """One number of channels and one depth for all: grey among colour becomes colour."""
    depths = {image.max_value: pair.image for pair, image in zip(pairs, images, strict=True)}
    if len(depths) == 2:
        raise UserError(
            f"{depths[65535]} has 16 bit, {depths[255]} has 8: images of one data set must be of "
            "one depth; convert them"
        )
    channels = {image.channels: pair.image for pair, image in zip(pairs, images, strict=True)}
    if len(channels) > 1 and set(channels) != {1, 3}:
        (few, one), (many, other) = sorted(channels.items())[:2]
        raise UserError(
            f"{one} has {few} channels, {other} has {many}: images of one data set must have "
            "equally many; convert them"
        )
    return ImageFormat(max(channels), next(iter(depths)))


def _common_palette(masks: list[FileFacts]) -> tuple[tuple[int, int, int], ...] | None:
    """The palette, where all masks have the same."""
    first = masks[0].palette
    if first is None or any(mask.palette != first for mask in masks):
        return None
    return tuple((r, g, b) for r, g, b in first)


def _look_at(path: Path, is_mask: bool) -> FileFacts:
    header = read_header(path)
    values = palette = None
    if is_mask:
        found = np.unique(read_mask(path))
        if len(found) > _MOST_VALUES or (header.is_lossy and len(found) > 2):
            raise UserError(
                f"{path}: {len(found)} different values in one mask"
                + (", as lossy compression makes them" if header.is_lossy else "")
                + "; a mask needs one value per class: save it as PNG, without soft edges"
            )
        values = [int(value) for value in found]
        palette = [list(colour) for colour in header.palette] if header.palette else None
    else:
        check_decodes(path)
    return FileFacts(
        header.width,
        header.height,
        header.format.channels,
        header.format.max_value,
        header.is_colour,
        values,
        palette,
    )


class _Cache:
    """Facts of files by path, kept in one JSON file for each folder of masks."""

    def __init__(self, folder: Path) -> None:
        name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
        self.path = cache_folder() / f"scan-{name[:16]}.json"
        self.entries: dict[str, list[Any]] = {}
        self.changed = False
        self.saved = time.monotonic()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept.get("version") == _VERSION:
                self.entries = kept["entries"]

    def facts(self, path: Path, is_mask: bool) -> FileFacts:
        try:
            status = path.stat()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}; mend or remove it") from None
        key = json.dumps([str(path.absolute()), is_mask])
        stamp = [status.st_size, status.st_mtime_ns]
        entry = self.entries.get(key)
        if entry and entry[0] == stamp:
            return FileFacts(**entry[1])
        facts = _look_at(path, is_mask)
        self.entries[key] = [stamp, asdict(facts)]
        self.changed = True
        return facts

    def save_now_and_then(self) -> None:
        """Keep the entries every few seconds: a long scan that is stopped was not in vain."""
        if time.monotonic() - self.saved > _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Keep the entries; a cache that can't be written is done without."""
        self.saved = time.monotonic()
        if not self.changed:
            return
        self.changed = False
        entries = dict(self.entries)  # threads may add to it meanwhile
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            half = self.path.with_suffix(f".{os.getpid()}.tmp")
            half.write_text(json.dumps({"version": _VERSION, "entries": entries}))
            half.replace(self.path)


def cache_folder() -> Path:
    """Where this user's caches go."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "unet_ddp"
