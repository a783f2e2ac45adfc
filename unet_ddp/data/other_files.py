"""Files in a folder of images that no reader takes by their ending: which may be images, and what to do with them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote

from unet_ddp.data.names import is_hidden
from unet_ddp.data.readers.microscopes import SUFFIXES, advise_export
from unet_ddp.data.readers.read import list_suffixes
from unet_ddp.data.suffixes import Files
from unet_ddp.errors import count_of
from unet_ddp.files import is_address

PACK_INDEX = "pack.index"
"""The file in a folder that makes it a pack."""
_SUFFIXES = SUFFIXES | {
    ".arw", ".avif", ".cr2", ".dcm", ".dng", ".heic", ".heif", ".j2k", ".jfif", ".jif", ".jp2", ".jpe", ".jpx",
    ".jxl", ".nef", ".ppm", ".psd", ".tga",
}  # fmt: skip
_HEADS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_INNER_HEADS = {4: (b"ftyphei", b"ftypmif1", b"ftypavif", b"jP  "), 8: (b"WEBP",), 128: (b"DICM",)}
"""First bytes of images, at their places."""
_TRIED, _KINDS = 3, 20  # files of each ending that are opened, and unknown endings without an image
_ADVICE = "export others as TIFF or PNG; python -m unet_ddp import makes masks of annotations"


def find_other_images(paths: Iterable[str], readable: Iterable[str]) -> list[str]:
    """Return the `paths` that may be images, by their ending or, on this machine, their first bytes.

    A file named as one that is `readable` is of that: a.jpg has a.cr2, a.tif has a.tif.ovr, a_mask.png has a_mask.psd.
    """
    files: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        if not is_hidden(path.rpartition("/")[2]):
            suffix = os.path.splitext(path)[1].lower()
            files[".0" if suffix[1:].isdigit() else suffix].append(path)  # of slice.001 …: one kind
    known = _SUFFIXES.intersection(files)
    unknown = [suffix for suffix in files if suffix not in known]
    hits = [each for each in unknown[:_KINDS] if any(map(_begins_as_image, files[each][:_TRIED]))]
    if hits:  # all of them count
        hits += unknown[_KINDS:]
    found = [path for suffix in known for path in files[suffix] if not os.path.isdir(path)]
    found += [path for suffix in hits for path in files[suffix] if _begins_as_image(path)]
    if not found:
        return []
    taken = {name for image in readable for name in (image, os.path.splitext(image)[0])}
    return sorted(path for path in found if os.path.splitext(path)[0] not in taken)


def _begins_as_image(path: str) -> bool:
    """Return whether a file of this machine begins as one of an image; False for a folder or a pipe."""
    head = b""
    with suppress(OSError):
        if not is_address(path) and os.path.isfile(path):
            with open(path, "rb") as file:
                head = file.read(160)
    return head.startswith(_HEADS) or any(
        head.startswith(begins, place) for place, begins in _INNER_HEADS.items()
    )


def describe_others(found: Sequence[str]) -> list[str]:
    """Return a line about files that may be images, if there are any."""
    return [
        f"{count_of(len(found), 'file')} with another ending, e.g. {first}: rename or export as .jpg, .png or .tif"
        for first in found[:1]
    ]


def note_others(folder: Path, others: Files, readable: Files) -> list[str]:
    """Return a note about files below a folder that may be images, beside those that are readable."""
    paths, taken = (
        (path for files in each.values() for path in files) for each in (others, readable)
    )
    return [
        f"left out of {folder}: {line}" for line in describe_others(find_other_images(paths, taken))
    ]


def advise_on_others(folder: Path) -> str:
    """Return what can be read, and what to do with the files below a folder, none of which can."""
    walked = () if is_address(folder) else os.walk(folder)
    names = []
    for parent, _, inside in walked:
        if PACK_INDEX in inside:
            return f"but a pack; use --images {quote(parent)} without --masks"
        names += inside
    return f"({', '.join(list_suffixes())}); {advise_export(names, _ADVICE)}"
