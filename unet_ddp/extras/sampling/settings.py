"""The settings of what an epoch shows of its images."""

from typing import Annotated

from unet_ddp.errors import Limit, UserError
from unet_ddp.settings import flag


class SamplingSettings:
    """Joins the settings of the data."""

    place = "data", "resize_masks"
    balance: Annotated[float, flag("PERCENT"), Limit(at_least=0, at_most=100)] = 0.0
    """Percentage of the training samples that are chosen by class, each class as often as any other, with crops around one of its pixels; e.g. 50 if classes are rare; 0: off."""
    scale_jitter: Annotated[
        tuple[float, float] | None,
        flag("LOW HIGH"),
        Limit(at_least=0.1, at_most=10),
    ] = None
    """Resize each training image by a random factor before its crop, e.g. 0.5 2; whole images are cropped or padded to their size."""

    def check(self) -> None:
        """Raise a UserError if the factors are in the wrong order."""
        low, high = self.scale_jitter or (1, 1)
        if low > high:
            raise UserError(f"--scale-jitter {low:g} {high:g}: use {high:g} {low:g}, LOW first")
