"""World files beside images: they have the place of a picture on a map, and none of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from shlex import quote

from unet_ddp.errors import count_of, print_lines
from unet_ddp.files import is_address


def warn_of_world_files(images: Iterable[Path]) -> None:
    """Print a warning if images, without a place of their files, have world files."""
    found = [*_find_world_files(images)]
    if not found:
        return
    image, world = found[0]
    print_lines(
        f"warning: {count_of(len(found), 'image')} with a world file, which is not read, e.g. {image} with {world}: "
        "no place on a map for masks and polygons; first use gdal_translate -a_srs EPSG:NUMBER "
        f"{quote(str(image))} NEW.tif"
    )


def _find_world_files(images: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the images of this machine that have one, with its name."""
    names = cache(_list_names)
    for image in images:
        if is_address(image) or not image.suffix:
            continue
        letters = image.suffix[1:].lower()
        for ending in (f"{letters[0]}{letters[-1]}w", f"{letters}w", "wld"):
            world = names(image.parent).get(f"{image.stem}.{ending}".lower())
            if world is not None:
                yield image, world
                break


def _list_names(folder: Path) -> dict[str, str]:
    """Return the names of a folder's files by what they are in lower case."""
    with suppress(OSError):
        return {path.name.lower(): path.name for path in folder.iterdir()}
    return {}
