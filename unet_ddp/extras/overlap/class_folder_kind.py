"""The kind of data set whose masks are in a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from unet_ddp.data.matching import Report, match_folders
from unet_ddp.data.pairs import CLASSES_MARK, DataPaths, Pair, PairKind, Pairs
from unet_ddp.files import is_address


class ClassFolders(PairKind):
    """A folder of images, and one of masks that has a folder for each class."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether the folder of masks has folders, in which the images are not."""
        if not paths.planes or paths.images is None or paths.masks is None:
            return False
        if any(map(is_address, (paths.images, paths.masks))):
            return False
        with suppress(OSError, ValueError):  # who lists the folder says so
            is_below = paths.images.resolve().is_relative_to(paths.masks.resolve())
            with os.scandir(paths.masks) as entries:
                return not is_below and any(entry.is_dir() for entry in entries)
        return False

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return the pairs of images and their masks of all classes, or of files with one name."""
        from unet_ddp.extras.overlap.folders import merge_class_masks

        return match_folders(paths, report, merge_class_masks)

    def collect(self, pairs: Sequence[Pair]) -> Pairs | None:
        """Return the set of pairs if any mask stands for a folder for each class, and all files are here."""
        files = (file for pair in pairs for file in (pair.image, pair.mask))
        is_marked = any(CLASSES_MARK in pair.mask.parts for pair in pairs)
        if not is_marked or any(map(is_address, files)):
            return None
        from unet_ddp.extras.overlap.folders import ClassFolderPairs

        return ClassFolderPairs(pairs)
