"""The kind of data set whose masks are polygons on a map."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from unet_ddp.data.listing import files_by_name
from unet_ddp.data.matching import Files, Report, match_folders, read_list
from unet_ddp.data.pairs import Pair, PairKind, Pairs, Places, Stamp
from unet_ddp.data.readers.read import can_read
from unet_ddp.errors import UserError
from unet_ddp.files import is_address
from unet_ddp.storage import real_file

SUFFIXES = (".gpkg", ".geojson", ".shp")
"""Of files of polygons."""
BURNT = ".polygons"
"""Suffix of the path of a mask that is burnt when it is read."""


class PolygonKind(PairKind):
    """Images with one file of polygons, with a folder of such files, or with a list that may name some."""

    def claims(self, places: Places) -> bool:
        """Return whether the masks' place is or contains such a file; a list may name some."""
        masks = places.masks
        if places.listed is not None or masks is None or places.images is None:
            return places.listed is not None
        if is_address(masks) or not masks.is_dir():
            return is_labels(masks.suffix)
        found = False
        for suffix in _list_suffixes(masks):
            if masks != places.images and can_read(suffix):
                return False
            found |= is_labels(suffix)
        return found

    def find(self, places: Places, report: Report) -> Pairs:
        """Return the pairs, each mask burnt when it is read."""
        if places.listed is not None:
            pairs = read_list(places.listed, report)
        else:
            refuse_addresses(places.images, places.masks)
            pairs = match_folders(places, report, _give_to_all, _list_labels)
        if not any(is_labels(real_file(pair.mask).suffix) for pair in pairs):
            return pairs
        from unet_ddp.extras.polygons.polygon_pairs import burn_pairs

        return burn_pairs(pairs, places)

    def collect(self, pairs: Sequence[Pair]) -> Pairs | None:
        """Return the set of pairs if any mask is burnt when it is read."""
        if not any(pair.mask.name.endswith(BURNT) for pair in pairs):
            return None
        from unet_ddp.extras.polygons.polygon_pairs import PolygonPairs

        return PolygonPairs(pairs)


def refuse_addresses(images: Path | None, labels: Path | None) -> None:
    """Raise a UserError if polygons, or images for them, are at an address."""
    for place in filter(is_address, (labels, images)):
        raise UserError(
            f"{place}: is an address; polygons ({labels}) and their images ({images}) must be on this machine: copy "
            "them, or use masks that are images"
        )


def is_labels(suffix: str) -> bool:
    """Return whether a suffix is that of files of polygons."""
    return suffix.lower() in SUFFIXES


def _list_suffixes(folder: str | Path) -> Iterator[str]:
    """Yield the suffix of each file below a folder, which may have millions, as it is found."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _list_suffixes(entry.path)
            else:
                yield Path(entry.name).suffix.lower()


def _list_labels(masks: Path, stamps: dict[str, Stamp]) -> Files:
    """Return the files of polygons below a folder by name; none for one file, which is for all images."""
    return files_by_name(masks, stamps, is_labels) if masks.is_dir() else {}


def _give_to_all(
    masks: Path, images: Files, found: Files, stamps: dict[str, Stamp], suffix: str | None
) -> Files:
    """Return the masks that were found in a folder, or one file of polygons for each image."""
    if masks.is_dir():
        return found
    return {name + (suffix or ""): [str(masks)] for name in images}
