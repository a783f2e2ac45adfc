"""The names of files: what is the same name, and the file that a name in a list means.

Paths stay as they are on the disk. Names are compared by their keys only: upper and lower case differ, the
two forms in which Unicode writes an accented letter (macOS and others differ in it) do not.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

PICTURE_HEAD = b"Software\0unet_ddp"
"""In the first bytes of a run's samples.png."""
_COMPOUND = (".ome",)  # x.ome.tif is the OME-TIFF of x
_COPY = re.compile(r"(.+?)(?:(?: -)? copy(?: \d+)?| ?\(\d+\))+", re.IGNORECASE)
"""x of "x copy", "x copy 2", "x (1)" and "x - Copy"."""
SERVICE_FOLDERS = {
    "@eaDir", "__MACOSX", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found",
}  # fmt: skip
"""Folders in which systems keep thumbnails and waste."""


def file_key(name: str) -> str:
    """Return what all spellings of a name share: Unicode's composed form (NFC)."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def without_compound(name: str) -> str:
    """Return a name without its last suffix also without the suffix before it, if both are one: x of x.ome."""
    for suffix in _COMPOUND:
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return name


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden, or a folder in which systems keep thumbnails or waste."""
    return name.startswith(".") or name in SERVICE_FOLDERS


def find_spelling(folder: Path, name: str) -> str:
    r"""Return a path in a list, from `folder` or absolute, as the file that it means is spelled.

    A path that does not exist may have Windows' separators (\) or encoding, or another form of Unicode.
    Without any such file, the path is returned as it is given.
    """
    for spelling in _spellings(name):
        found = _find_by_key(folder, spelling)
        if found is not None:
            return found
    return name


def _spellings(name: str) -> Iterator[str]:
    yield name
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:  # bytes that are not UTF-8: as Excel saves a plain CSV
            try:
                name = os.fsencode(name).decode("cp1252")
            except UnicodeDecodeError:
                return
            yield name
    if "\\" in name:
        yield name.replace("\\", "/")


def _find_by_key(folder: Path, name: str) -> str | None:
    """Return the path from `folder` that exists and has the key of `name`; None without one, or of several."""
    if os.path.lexists(folder / name):
        return name
    if name.isascii():
        return None
    path = Path(name)
    found = Path(path.anchor)
    for part in path.parts[bool(path.anchor) :]:
        if not os.path.lexists(folder / found / part):
            same = [each for each in _list(folder / found) if file_key(each) == file_key(part)]
            if len(same) != 1:
                return None
            (part,) = same
        found /= part
    return str(found)


def _list(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except (OSError, ValueError):  # the second: no name can be so
        return []


def copies_of(names: Iterable[str]) -> dict[str, str]:
    """Return the names that file managers give to copies, with that of the file that was copied."""
    known = set(names)
    found = {}
    for name in known:
        copied = _COPY.fullmatch(name)
        if copied and copied[1] in known:
            found[name] = copied[1]
    return found


def tell_apart(images: Sequence[Path]) -> list[str]:
    """Return the images' names, or their paths below the folder of all where two have one name."""
    names = [image.name for image in images]
    if len({*names}) == len(names):
        return names
    components = [str(image).replace("\\", "/").split("/") for image in images]
    shortest, longest = min(components), max(components)  # in order: what these share, all do
    common = 0
    while common < len(shortest) - 1 and shortest[common] == longest[common]:
        common += 1
    return ["/".join(each[common:]) for each in components]
