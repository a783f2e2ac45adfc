"""A look at every file before the first step: is it whole, how large, which values.

Decoding all files takes a while, so what was found is kept in the user's cache folder, by
path, and believed as long as a file's size and time are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from unet_ddp.data.checks.metadata import (
    ImageMetadata,
    MaskMetadata,
    Palette,
    read_image_metadata,
    read_mask_metadata,
)
from unet_ddp.data.label_rules import MaskValues
from unet_ddp.data.pairs import Pair
from unet_ddp.errors import UserError

_VERSION = 2  # of what an entry holds
_SAVE_EVERY = 10  # seconds

Facts = ImageMetadata | MaskMetadata
Progress = Callable[[Iterable[Any], int], Iterable[Any]]
_File = tuple[Path, bool]  # and whether it is a mask


@dataclass(frozen=True)
class Findings:
    """What the scan found in a data set: of each sound pair, in the order of `pairs`."""

    pairs: list[Pair]
    images: list[ImageMetadata]
    masks: list[MaskMetadata]
    errors: dict[str, str] = field(default_factory=dict)
    """What is wrong with the other pairs, by their names."""

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(height, width) of every image."""
        return [(image.height, image.width) for image in self.images]

    def mask_values(self) -> MaskValues:
        """The values in all masks together."""
        counts: Counter[int] = Counter()
        where: dict[int, str] = {}
        for pair, mask in zip(self.pairs, self.masks, strict=True):
            for value, count in zip(mask.values, mask.counts, strict=True):
                counts[value] += count
                if value not in where:
                    where[value] = str(pair.mask)
        palette = self.masks[0].palette
        if any(mask.palette != palette for mask in self.masks):
            palette = None
        lossy = next(
            (
                str(pair.mask)
                for pair, mask in zip(self.pairs, self.masks, strict=True)
                if mask.is_lossy
            ),
            None,
        )
        return MaskValues(counts, self.masks[0].is_colour, palette, lossy, where)


def scan(
    pairs: list[Pair],
    *,
    progress: Progress,
    workers: int = 1,
    nodata: float | None = None,
    channels: int | None = None,
) -> Findings:
    """Look at every image and mask, and report all that is wrong.

    Args:
        progress: wraps an iterable and its length, to show how far it is.
        workers: threads; decoders let go of Python's lock.
        nodata: the value of pixels that hold nothing.
        channels: as many as the images are to have.
    """
    files = [
        (path, is_mask)
        for pair in pairs
        for path, is_mask in ((pair.image, False), (pair.mask, True))
    ]
    cache = _Cache(pairs[0].mask.parent, nodata, channels)
    try:
        facts = []
        for found in progress(_look_at_all(files, cache, max(1, workers)), len(files)):
            facts.append(found)
            cache.save_now_and_then()
    finally:
        cache.save()
    sound, images, masks, errors = [], [], [], {}
    for pair, image, mask in zip(pairs, facts[::2], facts[1::2], strict=True):
        wrong = [str(fact) for fact in (image, mask) if isinstance(fact, UserError)]
        if wrong:
            errors[pair.name] = "; ".join(wrong)
        else:
            sound.append(pair)
            images.append(image)
            masks.append(mask)
    return Findings(sound, images, masks, errors)


def _look_at_all(files: list[_File], cache: _Cache, workers: int) -> Iterator[Facts | UserError]:
    """The facts of each file, in order; some files ahead are looked at meanwhile."""
    waiting: deque[Facts | UserError | Future[Facts | UserError]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for file in files:
                known = cache.known(file)
                waiting.append(pool.submit(cache.look, file) if known is None else known)
                while len(waiting) > 8 * workers:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def _result(found: Facts | UserError | Future[Facts | UserError]) -> Facts | UserError:
    return found.result() if isinstance(found, Future) else found


class _Cache:
    """Facts of files by path, kept in one JSON file for each folder of masks."""

    def __init__(self, folder: Path, nodata: float | None, channels: int | None) -> None:
        key = f"{folder.resolve()} {nodata} {channels}"
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        self.path = cache_folder() / f"scan-{name[:16]}.json"
        self.nodata, self.channels = nodata, channels
        self.entries: dict[str, list[Any]] = {}
        self.palettes: list[Palette] = []  # each kept once: there are few, with 256 colours
        self.changed = False
        self.saved = time.monotonic()
        self.lock = threading.Lock()
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept.get("version") == _VERSION:
                self.palettes = [tuple((r, g, b) for r, g, b in p) for p in kept["palettes"]]
                self.entries = kept["entries"]
        self.numbers = {palette: k for k, palette in enumerate(self.palettes)}

    def known(self, file: _File) -> Facts | UserError | None:
        """What the cache knows of the file as it is now; None where nothing."""
        path, is_mask = file
        try:
            status = path.stat()
        except OSError as error:
            return UserError(f"{path}: {error.strerror or error}; mend or remove it")
        entry = self.entries.get(_key(file))
        if not entry or entry[:2] != [status.st_size, status.st_mtime_ns]:
            return None
        kind: Any = MaskMetadata if is_mask else ImageMetadata
        values: list[Any] = [tuple(v) if isinstance(v, list) else v for v in entry[2]]
        if is_mask and values[4] is not None:
            values[4] = self.palettes[values[4]]
        facts: Facts = kind(*values)
        return facts

    def look(self, file: _File) -> Facts | UserError:
        """Decode the file, and remember what it holds; called by several threads."""
        path, is_mask = file
        try:
            status = path.stat()
            facts = (
                read_mask_metadata(path)
                if is_mask
                else read_image_metadata(path, self.nodata, self.channels)
            )
        except UserError as error:
            return error
        except OSError as error:
            return UserError(f"{path}: {error.strerror or error}; mend or remove it")
        values = [getattr(facts, item.name) for item in fields(facts)]
        with self.lock:
            if isinstance(facts, MaskMetadata) and facts.palette is not None:
                number = self.numbers.setdefault(facts.palette, len(self.palettes))
                if number == len(self.palettes):
                    self.palettes.append(facts.palette)
                values[4] = number
            self.entries[_key(file)] = [status.st_size, status.st_mtime_ns, values]
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
        with self.lock:  # copies: threads may add meanwhile
            palettes, entries = list(self.palettes), dict(self.entries)
        kept = {"version": _VERSION, "palettes": palettes, "entries": entries}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            half = self.path.with_suffix(f".{os.getpid()}.tmp")
            half.write_text(json.dumps(kept))
            half.replace(self.path)


def _key(file: _File) -> str:
    return f"{'mask' if file[1] else 'image'} {file[0].absolute()}"


def cache_folder() -> Path:
    """Where this user's caches go."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "unet_ddp"
    except RuntimeError:  # a user without a home, as in containers
        return Path(tempfile.gettempdir()) / f"unet_ddp-{os.getuid()}"
