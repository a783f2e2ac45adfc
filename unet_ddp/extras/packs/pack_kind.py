"""The kind of data set that is a pack."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import DataPaths, PairKind, Pairs
from unet_ddp.errors import UserError
from unet_ddp.files import is_address


class PackKind(PairKind):
    """A pack, which has the masks too."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether images are given, and no masks, or one of both is a pack on this machine."""
        if paths.images is None or paths.masks is None:
            return paths.images is not None
        return _is_pack(paths.images) or _is_pack(paths.masks)

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return all pairs of the pack."""
        from unet_ddp.extras.packs.pairs import open_pack

        assert paths.images is not None
        if paths.masks is not None:
            pack = paths.masks if _is_pack(paths.masks) else paths.images
            raise UserError(
                f"{pack}: is a pack, which has images and masks; use --images {pack} without --masks"
            )
        return open_pack(paths.images)


def _is_pack(place: Path) -> bool:
    from unet_ddp.extras.packs.pack_files import INDEX

    with suppress(OSError, ValueError):  # who reads the folder says so
        return not is_address(place) and (place / INDEX).is_file()
    return False
