"""The images that a user means."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from unet_ddp.data.formats.header import SUFFIXES
from unet_ddp.errors import UserError

_MADE = ("_mask", "_overlay", "_probabilities")


def find_images(inputs: Sequence[str]) -> list[Path]:
    """The images among files, folders, patterns and lists, each once.

    Masks and overlays that an earlier prediction left beside their images are passed over.

    Raises:
        UserError: a path that is not there, or a folder, pattern or list without images.
    """
    if not inputs:
        raise UserError("no inputs: give images, or folders of images")
    found: dict[Path, None] = {}
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            found.update(dict.fromkeys(_in_folder(path)))
        elif path.suffix.lower() == ".txt" and path.is_file():
            found.update(dict.fromkeys(_in_list(path)))
        elif path.exists():
            found[path] = None
        elif glob.has_magic(name):
            found.update(dict.fromkeys(_matching(name)))
        else:
            raise UserError(f"{path}: no such file or folder")
    return list(found)


def is_image(path: Path) -> bool:
    """By its name; hidden files are none."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _in_folder(folder: Path) -> list[Path]:
    try:
        kept = _without_made(sorted(path for path in folder.iterdir() if is_image(path)))
    except OSError as error:
        raise UserError(f"{folder}: can't be read: {error.strerror or error}") from None
    if not kept:
        raise UserError(f"{folder}: no images in it ({', '.join(sorted(SUFFIXES))})")
    return kept


def _matching(pattern: str) -> list[Path]:
    paths = (Path(name) for name in sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207
    kept = _without_made([path for path in paths if is_image(path)])
    if not kept:
        raise UserError(f"{pattern}: no image matches it")
    return kept


def _in_list(path: Path) -> list[Path]:
    """Paths as a list has them: from here, or else from the list's folder. Empty lines and those
    that begin with # are passed over; a file that is not there is told when its turn comes."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: no list of images that can be read: {error}") from None
    names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise UserError(f"{path}: no images in it: a list has a path on each line")
    return [
        Path(name)
        if Path(name).exists() or not (path.parent / name).exists()
        else path.parent / name
        for name in names
    ]


def _without_made(paths: Iterable[Path]) -> list[Path]:
    """`paths` less those that are made from another of them."""
    images = list(paths)
    known = {path.with_suffix("") for path in images}
    return [path for path in images if not _is_made(path, known)]


def _is_made(path: Path, known: set[Path]) -> bool:
    """Whether a file is the mask, the overlay or a probability of another image there."""
    stem = path.stem
    origins = [stem.removesuffix(end) for end in _MADE if stem.endswith(end)]
    if "_probability_" in stem:
        origins.append(stem.rpartition("_probability_")[0])
    return any(path.with_name(origin) in known for origin in origins)
