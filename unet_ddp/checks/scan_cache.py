"""Store of what a scan found in each file, in the user's cache folder.

An entry is valid as long as its file's size and time are the same.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from unet_ddp.checks.metadata import ImageMetadata, MaskMetadata, Metadata, ScannedFile
from unet_ddp.data.pairs import find_stamp
from unet_ddp.data.readers.base import Header
from unet_ddp.files import cache_folder, refuse_special, write_text

SAVE_EVERY = 10
"""Seconds, after which a scan saves what it has."""


class ScanCache:
    """Metadata by file, kept as a digest and JSON in one file of the cache folder for each `key`.

    Headers are stored once each: few differ, and one may have a palette of 256 colours.
    """

    def __init__(self, key: str) -> None:
        caches = cache_folder()
        self.path = caches and caches / f"scan-{_digest(key)[:16]}.json"
        self.entries: dict[str, Metadata] = {}
        self.is_changed = False
        self.saved = time.monotonic()
        if self.path is None:
            return
        with suppress(OSError, ValueError, AttributeError, LookupError, TypeError):  # no cache yet
            refuse_special(self.path)
            digest, text = self.path.read_text(encoding="utf-8").split("\n", 1)
            if digest != _digest(text):
                return
            stored = json.loads(text)
            headers = [Header(*as_tuples(values)) for values in stored["headers"]]
            for name, (place, *values) in stored["entries"].items():
                kind: Any = MaskMetadata if name.startswith("mask") else ImageMetadata
                self.entries[name] = kind(headers[place], *as_tuples(values))

    def get(self, file: ScannedFile) -> Metadata | None:
        """Return the metadata of the file as it is now, None if that is unknown."""
        path, _, stamp = file
        found = self.entries.get(_name(file))
        with suppress(OSError):
            if found and found.stamp == (stamp or find_stamp(path)):
                return found
        return None

    def put(self, file: ScannedFile, found: Metadata) -> None:
        """Keep the metadata of a file; called by several threads."""
        self.entries[_name(file)] = found
        self.is_changed = True

    def save(self, *, is_end: bool = True) -> None:
        """Write the entries if there are new ones; before the end now and then, as a scan may be killed."""
        if not is_end and time.monotonic() - self.saved <= SAVE_EVERY:
            return
        if self.is_changed and self.path is not None:
            self.is_changed = False
            places: dict[Header, int] = {}
            entries = {
                name: [places.setdefault(metadata.header, len(places)), *metadata[1:]]
                for name, metadata in self.entries.copy().items()
            }
            stored = {"headers": [astuple(header) for header in places], "entries": entries}
            text = json.dumps(stored)
            with suppress(OSError):
                write_text(self.path, f"{_digest(text)}\n{text}")
        self.saved = time.monotonic()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _name(file: ScannedFile) -> str:
    path, is_mask, *_ = file
    kind = "mask" if is_mask else "image"
    return f"{kind} {path.absolute()}"


def as_tuples(value: Any) -> Any:
    """Return a value read from JSON, its lists as tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value
