"""The path of a mask that is burnt when it is read: it says all that its pixels depend on."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from unet_ddp.extras.polygons.polygon_kind import BURNT

_PATH = re.compile(r"(.+)#@([^@/]+)@[^#/]*\.polygons", re.DOTALL)


class BurntMask(NamedTuple):
    """A mask: the polygons of a file on the grid of an image, and the rule by which they become values."""

    labels: Path
    image: Path
    stamp: int  # changes with the files of the polygons, and with the image's
    class_field: str | None = None  # the attribute with their classes; None: all are of one
    overlap: bool = False  # bit k of a value is class k
    ignore: int | None = None  # value of pixels under polygons without a class
    digest: int = 0  # of the classes in the file, if these have names
    names: tuple[str, ...] = ()  # of all classes, if these are not those in the file

    @property
    def path(self) -> Path:
        """The path that names it: labels.gpkg#@…@image.tif.polygons; messages leave out what is between @."""
        labels, image, *rule = self
        words = quote(json.dumps([str(image.absolute()), *rule]), safe="")
        return Path(f"{labels}#@{words}@{quote(image.name, errors='replace')}{BURNT}")


@lru_cache(maxsize=1024)
def parse(path: Path) -> BurntMask | None:
    """Return what a path names, perhaps among other words after its end; None for that of a file."""
    if found := _PATH.match(str(path)):
        with suppress(ValueError, TypeError, RecursionError):  # a list may contain anything
            image, *rule, names = json.loads(unquote(found[2]))
            return BurntMask._make([Path(found[1]), Path(image), *rule, tuple(names)])
    return None
