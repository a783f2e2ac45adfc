"""The kind of data set whose masks are polygons on a map."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from unet_ddp.data.listing import files_by_name
from unet_ddp.data.matching import Report, match_folders, read_list
from unet_ddp.data.pairs import DataPaths, Pair, PairKind, Pairs, Stamp
from unet_ddp.data.readers.read import can_read
from unet_ddp.data.suffixes import Files
from unet_ddp.errors import UserError
from unet_ddp.files import is_address
from unet_ddp.storage import real_file

SUFFIXES = (".gpkg", ".geojson", ".shp")
"""Of files of polygons."""
BURNT = ".polygons"
"""Suffix of the path of a mask that is burnt when it is read."""
_FIRST = 100  # files


class PolygonKind(PairKind):
    """Images with one file of polygons, with a folder of such files, or with a list that names some."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether the masks' place is, contains or lists such a file."""
        masks = paths.masks
        if paths.listed is not None:
            return _names_labels(paths.listed)
        if masks is None or paths.images is None:
            return False
        if is_address(masks) or not masks.is_dir():
            return is_labels(masks.suffix)
        if masks != paths.images and _begins_with_image(masks):
            return False
        for _, _, names in os.walk(masks):  # the first folder with files of either kind decides
            suffixes = {Path(name).suffix.lower() for name in names}
            if any(map(is_labels, suffixes)):
                return masks == paths.images or not any(map(can_read, suffixes))
            if any(map(can_read, suffixes)):
                break
        return False

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return the pairs, each mask burnt when it is read."""
        if paths.listed is not None:
            pairs = read_list(paths.listed, report)
        else:
            refuse_addresses(paths.images, paths.masks)
            pairs = match_folders(paths, report, _give_to_all, _list_labels)
        if not any(is_labels(real_file(pair.mask).suffix) for pair in pairs):
            return pairs
        from unet_ddp.extras.polygons.polygon_pairs import burn_pairs

        return burn_pairs(pairs, paths)

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


def _begins_with_image(folder: Path) -> bool:
    """Return whether an image is among the first files of a folder, which may have millions."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(can_read(Path(entry.name).suffix.lower()) for entry in islice(entries, _FIRST))
    return False


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


def _names_labels(listed: Path) -> bool:
    """Return whether the text of a list has a suffix of files of polygons."""
    with suppress(OSError):  # who reads the list says so
        if not is_address(listed) and listed.is_file():
            text = listed.read_bytes().replace(b"\0", b"").lower()  # UTF-16, too
            return any(suffix.encode() in text for suffix in SUFFIXES)
    return False
