"""The kinds of data sets that the core finds: two folders, and lists."""

from __future__ import annotations

from collections.abc import Sequence

from unet_ddp.data.matching import Report, match_folders, read_list
from unet_ddp.data.pairs import DataPaths, Pair, PairKind, Pairs
from unet_ddp.files import is_address


class PairList(PairKind):
    """A CSV file that names the files."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether a list is given."""
        return paths.listed is not None

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return the pairs of the list's rows."""
        assert paths.listed is not None
        return read_list(paths.listed, report)


class Folders(PairKind):
    """A folder of images and one of masks, here or at addresses."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether both are given."""
        return paths.images is not None and paths.masks is not None

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return the pairs of files with one name."""
        return match_folders(paths, report)

    def collect(self, pairs: Sequence[Pair]) -> Pairs:
        """Return the set of pairs of any files, which may be at addresses."""
        files = (file for pair in pairs for file in (pair.image, pair.mask))
        if not any(map(is_address, files)):
            return Pairs(pairs)
        from unet_ddp.data.remote_pairs import RemotePairs

        return RemotePairs(pairs)
