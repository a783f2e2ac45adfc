"""Settings of classes that overlap."""

from typing import Annotated

from unet_ddp.errors import UserError
from unet_ddp.settings import Calls, Excludes, Kind


class OverlapSettings:
    """Join the settings of the data."""

    place = "data", "instances"
    overlap: Annotated[
        bool,
        Kind.FIXED,
        Calls("label_rules"),
        Excludes("instances", "mask_threshold", "palette", "classes", "invert"),
    ] = False
    """Classes may overlap: masks are a folder for each class, a page of a TIFF for each, or bit fields; each class is learnt and predicted by itself (docs/how-to/overlapping-classes.md)."""
    all_masks: Annotated[bool, Kind.FIXED] = False
    """With --overlap: an image that lacks a mask in a class's folder is an error; without the flag, it has no pixel of the class."""

    def check(self) -> None:
        """Refuse a setting that needs one class for each pixel, and one that is of overlap alone."""
        if self.all_masks and not self.overlap:
            raise UserError("--all-masks: is for --overlap; use both or neither")
        if self.overlap and getattr(self, "balance", False):
            raise UserError("--overlap and --balance: use one of them")
