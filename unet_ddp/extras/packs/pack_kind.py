"""The kind of data set that is a pack."""

from __future__ import annotations

from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import DataPaths, PairKind, Pairs


class PackKind(PairKind):
    """A pack, which has the masks too."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether images are given, and no masks."""
        return paths.images is not None and paths.masks is None

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return all pairs of the pack."""
        from unet_ddp.extras.packs.pairs import open_pack

        assert paths.images is not None
        return open_pack(paths.images)
