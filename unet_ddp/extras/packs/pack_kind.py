"""The kind of data set that is a pack."""

from __future__ import annotations

from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import PairKind, Pairs, Places


class PackKind(PairKind):
    """A pack, which has the masks too."""

    def claims(self, places: Places) -> bool:
        """Return whether images are given, and no masks."""
        return places.images is not None and places.masks is None

    def find(self, places: Places, report: Report) -> Pairs:
        """Return all pairs of the pack."""
        from unet_ddp.extras.packs.pairs import open_pack

        assert places.images is not None
        return open_pack(places.images)
