"""The kind of data set that is an object in a module, as my_data:cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import DataPaths, Pair, PairKind, Pairs
from unet_ddp.errors import UserError
from unet_ddp.plugins import names_object

if TYPE_CHECKING:
    from unet_ddp.extras.arrays.items import Items

OPENED: dict[str, Items] = {}
"""By the first part of their pairs' paths, the data sets that this process has found or was given."""

GIVEN: dict[str, Items] = {}
"""By their names in place of paths, the data that a call from Python has given."""


class ItemKind(PairKind):
    """Items of a data set, or of a sequence of images and one of masks."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether a place is an object in a module, or data that Python has given."""
        is_given = str(paths.images) in GIVEN
        return is_given or names_object(paths.images) or names_object(paths.masks)

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return all items, each read once."""
        from unet_ddp.extras.arrays.item_pairs import find_items
        from unet_ddp.extras.arrays.items import Items

        given = GIVEN.get(str(paths.images))
        if given is not None:
            return find_items(given)
        images, masks = (
            None if each is None else str(each) for each in (paths.images, paths.masks)
        )
        for each, other in ((images, masks), (masks, images)):
            if not names_object(each) and each is not None:
                raise UserError(
                    f"{each} and {other}: one is a folder; use MODULE:NAME for images and masks, or for neither"
                )
        assert images is not None  # --masks alone is refused before
        return find_items(Items.of_modules(images, None if masks == images else masks))

    def collect(self, pairs: Sequence[Pair]) -> Pairs | None:
        """Return the set of pairs if any is an item of a data set."""
        if not OPENED or not any(
            pair.image.parts[:1] and pair.image.parts[0] in OPENED for pair in pairs
        ):
            return None
        from unet_ddp.extras.arrays.item_pairs import ItemPairs

        return ItemPairs(pairs)
