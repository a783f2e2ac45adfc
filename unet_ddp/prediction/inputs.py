"""The images that a user means."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from unet_ddp.data.readers.read import Source, can_read, find_readers, list_suffixes
from unet_ddp.errors import UserError
from unet_ddp.files import as_path, is_address, refuse_special

_OUTPUT_ENDINGS = ("_mask", "_overlay", "_probabilities")


def find_images(inputs: Sequence[str]) -> list[Path]:
    """Return the images among files, folders, patterns and lists, each once.

    Skipped are masks and overlays that an earlier prediction left next to their images.

    Raises:
        UserError: a path that does not exist, or a folder, pattern or list without images.
    """
    if not inputs:
        raise UserError("no inputs: give images, or folders of images")
    images: dict[Path, None] = {}
    for name in inputs:
        path = as_path(name)
        try:
            found = _find(path, name)
        except OSError as error:
            raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
        if not found:
            raise UserError(f"{path}: contains no images ({', '.join(list_suffixes())})")
        images.update(dict.fromkeys(found))
    return list(images)


def _find(path: Path, name: str) -> list[Path]:
    """Return the images of one input, and `path` itself if it is a file of any kind."""
    if path.is_dir():
        return _without_outputs(sorted(path.iterdir()))
    if path.exists():
        return _in_list(path) if path.suffix.lower() == ".txt" else [path]
    if not glob.has_magic(name):
        raise UserError(f"{path}: not found")
    found = _without_outputs(map(Path, sorted(glob.glob(name, recursive=True))))
    if not found:
        raise UserError(f"{name}: matches no image")
    return found


def find_maps(images: Sequence[Path], ground_resolution: float | None) -> dict[Source, bool]:
    """Return which images have map coordinates; see `OpenFile.find_places`.

    Raises:
        UserError: their ground resolutions differ, and the network's is None.
    """
    sources = [Source(image) for image in images]
    on_map: set[Source] = set()
    for reader in find_readers(images):
        on_map |= reader.find_places(sources, ground_resolution)
    return {source: source in on_map for source in sources}


def _in_list(path: Path) -> list[Path]:
    """Return the paths in a list: addresses, or from the current folder, or else from the list's.

    Empty lines and comments (#) are skipped; what is no image is reported when its turn comes.
    Names need not be UTF-8.
    """
    try:
        refuse_special(path)
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
        if "\0" in text:
            raise OSError("it is not UTF-8 text")
    except OSError as error:
        raise UserError(f"{path}: can't be read as a list of images: {error}") from None
    lines = map(str.strip, text.splitlines())
    names = [line for line in lines if line and not line.startswith("#")]
    if not names:
        raise UserError(f"{path}: contains no images; a list has one path per line")
    images = []
    for name in names:
        is_whole = "://" in name or os.path.isabs(name)
        is_whole |= os.path.exists(name) and not is_address(path)
        images.append(as_path(name) if is_whole else path.parent / name)
    return images


def _without_outputs(paths: Iterable[Path]) -> list[Path]:
    """Return the images among `paths`, without those that are predicted from another of them."""
    images = [
        path
        for path in paths
        if can_read(path.suffix.lower()) and not path.name.startswith(".") and not path.is_dir()
    ]
    known = {path.with_suffix("") for path in images}
    return [path for path in images if not any(origin in known for origin in _origins(path))]


def _origins(path: Path) -> list[Path]:
    """Return what `path` would be the mask, overlay or probability of, without suffix."""
    stem = path.stem
    origins = [stem.removesuffix(end) for end in _OUTPUT_ENDINGS if stem.endswith(end)]
    origins.append(stem.rpartition("_probability_")[0])
    return [path.with_name(origin) for origin in origins if origin]
