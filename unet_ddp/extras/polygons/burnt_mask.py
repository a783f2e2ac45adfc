"""The path of a mask that is burnt when it is read: it says all that its pixels depend on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode

from unet_ddp.data.pairs import Stamp, find_stamp
from unet_ddp.data.readers.base import as_user_error
from unet_ddp.extras.polygons.polygon_kind import BURNT
from unet_ddp.files import is_address

_VERSION = 1  # of the rule by which polygons become pixels


@dataclass(frozen=True)
class Burning:
    """The rule by which polygons become the values of masks."""

    class_field: str | None = None  # the attribute with their classes; None: all are of one
    overlap: bool = False  # bit k of a value is class k
    ignore: int | None = None  # value of pixels under polygons without a class
    names: tuple[str, ...] = ()  # of the classes, if these are texts; of the background none


@dataclass(frozen=True)
class BurntMask:
    """A mask: the polygons of a file, on the grid of an image."""

    labels: Path
    layer: str  # of the file
    image: Path
    burning: Burning  # with the names of all classes, if these are texts

    @property
    def path(self) -> Path:
        """The path that names it: labels.gpkg#layer=…&image=….polygons."""
        rule = self.burning
        words = {
            "layer": self.layer,
            "field": rule.class_field,
            "names": rule.names,
            "overlap": "1" if rule.overlap else None,
            "ignore": rule.ignore,
            "image": str(self.image.absolute()),
        }
        kept = {key: value for key, value in words.items() if value not in (None, ())}
        text = urlencode(kept, doseq=True, safe="", quote_via=quote, errors="surrogateescape")
        return Path(f"{self.labels}#{text}{BURNT}")

    @property
    def files(self) -> Sequence[Path]:
        """The files of the polygons: of a shapefile, all that there are."""
        if self.labels.suffix.lower() != ".shp":
            return [self.labels]
        endings = (self.labels.suffix, ".shx", ".dbf", ".prj", ".cpg")
        files = (find_beside(self.labels, ending) for ending in endings)
        return [file for file in files if file is not None]

    @property
    def stamp(self) -> Stamp:
        """The size in bytes of the polygons' files, and a number that changes with them, or with the image's file.

        Raises:
            UserError: one is not there.
        """
        stamps = []
        for file in (self.image, *self.files):
            with as_user_error(file):
                stamps.append(find_stamp(file))
        digest = hashlib.sha256(repr((_VERSION, stamps)).encode()).hexdigest()
        return sum(size for size, _ in stamps[1:]), int(digest[:15], 16)


@lru_cache(maxsize=1024)
def parse(path: Path) -> BurntMask | None:
    """Return what a path names, perhaps among other words after its end; None for that of a file."""
    if is_address(path):  # whose file would be fetched
        return None
    burnt, _, _ = os.fspath(path).rpartition(BURNT)
    labels, _, text = burnt.rpartition("#")
    words = parse_qs(text, keep_blank_values=True, errors="surrogateescape")
    if not labels or "image" not in words:
        return None
    rule = Burning(
        class_field=words.get("field", [None])[0],
        overlap="overlap" in words,
        ignore=int(words["ignore"][0]) if "ignore" in words else None,
        names=tuple(words.get("names", ())),
    )
    return BurntMask(Path(labels), words["layer"][0], Path(words["image"][0]), rule)


def find_beside(path: Path, suffix: str) -> Path | None:
    """Return the file next to `path` with another suffix, in upper or lower case; None if there is none."""
    for each in (suffix, suffix.lower(), suffix.upper()):
        with suppress(OSError):
            if path.with_suffix(each).is_file():
                return path.with_suffix(each)
    return None
